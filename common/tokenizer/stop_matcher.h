#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace selfsame {

// Finds the first stop string in a text that arrives in pieces.
//
// The match is the one that is complete first, that is, whose last byte comes first in the text; of
// several that end at the same byte it is the one listed first. So the result depends on the text
// alone and not on how it is cut, and a finished match never waits for a longer one. The output is
// the text before the match: no byte of the stop string, nor anything after it.
//
// A value: a copy is a snapshot to come back to after a rollback, and shares the compiled strings.
// Not thread safe; copies are independent of each other.
class StopMatcher {
 public:
  struct Result {
    // What can be given out now: no stop string can start in it any more.
    std::string text;
    // Set by the push that completes a match: the index of the stop string.
    std::optional<int> matched;
  };

  // Returns InvalidArgumentError naming `field` when there are more than kMaxStopStrings, or one is
  // empty, longer than kMaxStopStringBytes or not valid UTF-8. An empty list never matches.
  static absl::StatusOr<StopMatcher> Create(std::span<const std::string> stop_strings,
                                            std::string_view field = "stop.stop");

  // Takes the next piece of text, whole characters of UTF-8. The longest end of the text that could
  // begin a stop string is held back. After a match further text is ignored.
  Result Push(std::string_view text);

  // The text ends here: gives out what was held back. The matcher is as new afterwards, unless a
  // match ended it.
  std::string Flush();

  // The stop string that ended the text, or nothing.
  std::optional<int> matched() const { return matched_; }
  const std::string& stop_string(int index) const { return automaton_->strings[index]; }

 private:
  // Aho-Corasick: node 0 is the root, a node stands for a prefix of a stop string.
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;
    int32_t fallback = 0;  // the longest proper suffix that is a node too
    int32_t depth = 0;     // length in bytes
    int32_t match = -1;    // the first listed of the stop strings that end here
  };
  struct Automaton {
    std::vector<std::string> strings;
    std::vector<Node> nodes;

    int32_t Child(int32_t node, uint8_t byte) const;
    int32_t Next(int32_t node, uint8_t byte) const;
    void Insert(int32_t index);
    void LinkFallbacks();
  };

  explicit StopMatcher(std::shared_ptr<const Automaton> automaton)
      : automaton_(std::move(automaton)) {}

  std::shared_ptr<const Automaton> automaton_;
  int32_t node_ = 0;       // the longest end of the text that begins a stop string
  std::string held_back_;  // that end
  std::optional<int> matched_;
};

}  // namespace selfsame
