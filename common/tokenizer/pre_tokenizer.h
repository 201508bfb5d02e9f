#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/tokenizer/regex.h"

namespace selfsame {

// Cuts text into the words that BPE merges within: a chain of steps, each cutting the pieces of the
// one before. Immutable, thread safe.
class PreTokenizer {
 public:
  enum class Kind {
    kSplit,        // every match of `regex` is a piece, and so is every stretch between matches
    kEachDigit,    // every digit (general category N) is a piece, the text between them too
    kDigitRuns,    // the same with runs of digits
    kPrefixSpace,  // puts a space before a piece that does not start with one
  };
  struct Step {
    Kind kind;
    std::unique_ptr<const Regex> regex;  // null unless kSplit
  };

  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  // Calls `sink` with the words of `text`, in order; a word is never empty and valid only during
  // the call. REQUIRES: `text` is valid UTF-8.
  absl::Status Run(std::string_view text,
                   absl::FunctionRef<absl::Status(std::string_view)> sink) const;

 private:
  using Sink = absl::FunctionRef<absl::Status(std::string_view)>;
  absl::Status RunFrom(size_t step, std::string_view text, Sink sink) const;

  std::vector<Step> steps_;
};

// The pattern that ByteLevel with use_regex stands for (GPT-2's).
std::string_view Gpt2Pattern();

}  // namespace selfsame
