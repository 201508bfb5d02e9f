#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace selfsame {

// A token that is found in the text before anything else looks at it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  // Matches only where no word character touches it.
  bool single_word = false;
  // Takes the white space before, or after, it along.
  bool lstrip = false;
  bool rstrip = false;
  // Is looked for in the normalised text, not in the text as given.
  bool normalized = false;
  // Is left out by Decode on request.
  bool special = false;
};

// Finds added tokens. Immutable, thread safe.
class AddedTokenMatcher {
 public:
  // A stretch of text, or a token in its place.
  struct Segment {
    std::string_view text;
    int32_t token_id = kNoToken;
  };
  static constexpr int32_t kNoToken = -1;

  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Cuts valid UTF-8 at the tokens in it, from the left, the longest token winning at each place.
  // Text segments are views into `text` and never empty.
  std::vector<Segment> Split(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;
    int32_t token_index = -1;  // of the token that ends here
  };

  int32_t Child(int32_t node, uint8_t byte) const;
  // The index of the longest token at the start of `text`, or -1.
  int32_t LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie over bytes; node 0 is the root
  std::array<bool, 256> is_first_byte_{};
};

}  // namespace selfsame
