#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/stop_matcher.h"
#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "decoder/engine/types.h"

namespace selfsame::decoder {

struct OutputEnd {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token_id;
};

// Turns the tokens of one answer into text, one by one, and finds its end: the token that completes
// a stop string, a stop token, or the max_tokens-th token, whichever comes first; of those at the
// same token in this order. That token is part of the answer; text ends before a stop string.
// Special tokens have no text. Stop strings are looked for in the text after the first min_tokens
// tokens.
//
// A value: a copy is a snapshot. One thread.
class OutputStream {
 public:
  // INVALID_ARGUMENT when StopMatcher refuses a stop string. `tokenizer` must outlive the stream
  // and its copies; `stop_token_ids` are sorted.
  static absl::StatusOr<OutputStream> Create(const Tokenizer& tokenizer,
                                             std::span<const std::string> stop_strings,
                                             std::vector<int32_t> stop_token_ids,
                                             int32_t max_tokens, int32_t min_tokens = 0);

  // Takes the next token and returns the text that can be shown now. At the end nothing is held
  // back. REQUIRES: no end yet; token_id >= 0. Ids the tokeniser does not know have no text.
  std::string Push(int32_t token_id);

  // Takes tokens whose text has been shown elsewhere: the text goes on after them.
  // INVALID_ARGUMENT, naming resume_token_ids, when the answer ends among them. REQUIRES: as Push.
  absl::Status Resume(std::span<const int32_t> token_ids);

  const std::optional<OutputEnd>& end() const { return end_; }
  int32_t token_count() const { return token_count_; }

 private:
  OutputStream(const Tokenizer& tokenizer, StopMatcher matcher, std::vector<int32_t> stop_token_ids,
               int32_t max_tokens, int32_t min_tokens);
  // Passes text through the matcher, or past it where no stop string counts yet.
  void Match(std::string_view text, std::string& out);

  int32_t vocab_size_;
  StreamingDecoder decoder_;
  StopMatcher matcher_;
  std::vector<int32_t> stop_token_ids_;
  int32_t max_tokens_;
  int32_t min_tokens_;
  int32_t token_count_ = 0;
  std::optional<OutputEnd> end_;
};

}  // namespace selfsame::decoder
