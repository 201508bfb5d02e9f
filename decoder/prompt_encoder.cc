#include "decoder/prompt_encoder.h"

#include <string>

#include "common/errors.h"

namespace selfsame::decoder {

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      chat_template_(ChatTemplate::Recognize(tokenizer.chat_template(), tokenizer.bos_token())) {}

absl::StatusOr<std::vector<int32_t>> PromptEncoder::Encode(
    const v1::GenerateRequest& request) const {
  switch (request.input_case()) {
    case v1::GenerateRequest::kPromptTokenIds: {
      const auto& ids = request.prompt_token_ids().ids();
      return std::vector<int32_t>(ids.begin(), ids.end());
    }
    case v1::GenerateRequest::kChat:
      return EncodeChat(request.chat());
    default:
      return tokenizer_.Encode(request.prompt(), /*add_special_tokens=*/true, "prompt");
  }
}

absl::StatusOr<std::vector<int32_t>> PromptEncoder::Encode(
    const v1::TokenizeRequest& request) const {
  if (request.has_chat()) return EncodeChat(request.chat());
  return tokenizer_.Encode(request.text(), /*add_special_tokens=*/true, "text");
}

absl::StatusOr<std::vector<int32_t>> PromptEncoder::EncodeChat(const v1::ChatMessages& chat) const {
  RETURN_IF_ERROR(chat_template_.status());
  std::vector<ChatMessage> messages;
  messages.reserve(chat.messages_size());
  for (const v1::ChatMessage& message : chat.messages()) {
    messages.push_back({message.role(), message.content()});
  }
  ASSIGN_OR_RETURN(const std::string text, chat_template_->Render(messages));
  return tokenizer_.Encode(text, /*add_special_tokens=*/false, "chat.messages");
}

}  // namespace selfsame::decoder
