#include "common/tokenizer/streaming_decoder.h"

namespace selfsame {

std::string StreamingDecoder::Push(int32_t token_id) {
  std::string text;
  const std::string_view bytes = tokenizer_->TokenBytes(token_id);
  // A skipped token does not end the character in progress, just as it does not in Decode.
  if (skip_special_tokens_ && tokenizer_->IsSpecial(token_id)) return text;
  assembler_.Push(bytes, &text);
  return text;
}

std::string StreamingDecoder::Finish() {
  std::string text;
  assembler_.Finish(&text);
  return text;
}

}  // namespace selfsame
