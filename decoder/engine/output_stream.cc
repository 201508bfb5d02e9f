#include "decoder/engine/output_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"

namespace selfsame::decoder {

absl::StatusOr<OutputStream> OutputStream::Create(const Tokenizer& tokenizer,
                                                  std::span<const std::string> stop_strings,
                                                  std::vector<int32_t> stop_token_ids,
                                                  int32_t max_tokens, int32_t min_tokens) {
  ASSIGN_OR_RETURN(auto matcher, StopMatcher::Create(stop_strings));
  return OutputStream(tokenizer, std::move(matcher), std::move(stop_token_ids), max_tokens,
                      min_tokens);
}

OutputStream::OutputStream(const Tokenizer& tokenizer, StopMatcher matcher,
                           std::vector<int32_t> stop_token_ids, int32_t max_tokens,
                           int32_t min_tokens)
    : vocab_size_(tokenizer.vocab_size()),
      decoder_(&tokenizer, /*skip_special_tokens=*/true),
      matcher_(std::move(matcher)),
      stop_token_ids_(std::move(stop_token_ids)),
      max_tokens_(max_tokens),
      min_tokens_(min_tokens) {}

void OutputStream::Match(std::string_view text, std::string& out) {
  if (token_count_ <= min_tokens_) {
    out += text;
    return;
  }
  StopMatcher::Result result = matcher_.Push(text);
  out += result.text;
  if (result.matched) {
    end_ = OutputEnd{.reason = FinishReason::kStop,
                     .stop_string = matcher_.stop_string(*result.matched),
                     .stop_token_id = std::nullopt};
  }
}

std::string OutputStream::Push(int32_t token_id) {
  SELFSAME_CHECK(!end_ && token_id >= 0);
  ++token_count_;
  std::string text;
  // A model may have more rows in its embedding than its tokeniser has tokens.
  if (token_id < vocab_size_) Match(decoder_.Push(token_id), text);
  const bool is_stop_token =
      std::binary_search(stop_token_ids_.begin(), stop_token_ids_.end(), token_id);
  if (end_ || (!is_stop_token && token_count_ < max_tokens_)) return text;
  Match(decoder_.Finish(), text);
  if (end_) return text;
  text += matcher_.Flush();
  end_ = OutputEnd{.reason = is_stop_token ? FinishReason::kStop : FinishReason::kLength,
                   .stop_string = std::nullopt,
                   .stop_token_id = is_stop_token ? std::optional(token_id) : std::nullopt};
  return text;
}

absl::Status OutputStream::Resume(std::span<const int32_t> token_ids) {
  for (size_t i = 0; i < token_ids.size(); ++i) {
    Push(token_ids[i]);
    if (!end_) continue;
    const std::string what = end_->stop_string     ? "a stop string is complete"
                             : end_->stop_token_id ? "a stop token"
                                                   : "max_tokens are reached";
    return InvalidArgumentError(absl::StrCat("resume_token_ids[", i, "]"),
                                absl::StrCat("the answer ends here: ", what));
  }
  return absl::OkStatus();
}

}  // namespace selfsame::decoder
