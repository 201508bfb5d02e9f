#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace selfsame {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// What Llama 3.1 and later prompts say today's date is. Their templates would ask the clock; this
// is the constant the templates themselves fall back to without one.
inline constexpr std::string_view kDefaultChatDate = "26 Jul 2024";

struct ChatOptions {
  // Ends the prompt with the header of the answer to come.
  bool add_generation_prompt = true;
  // Qwen3 only: false puts an empty thought before the answer, so that the model does not think.
  bool enable_thinking = true;
  // Llama 3.1 and later only.
  std::string date = std::string(kDefaultChatDate);
};

// Renders chat messages as a model's own chat template does, byte for byte, for plain messages with
// the roles above. Templates are programs in another language; this recognises the known ones by
// their text and never runs them. Nothing rendered depends on the time of day.
//
// As with Hugging Face, special tokens written out in a message are not escaped: the tokeniser
// turns them into those tokens, so a message can end its own turn and open another.
//
// Immutable, thread safe.
class ChatTemplate {
 public:
  enum class Form {
    kChatMl,   // <|im_start|>role\ncontent<|im_end|>\n; perhaps with a default system message
    kQwen3,    // ChatML without a default system message; thoughts of earlier turns are dropped
    kLlama3,   // <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>
    kLlama31,  // the same after a system turn that is always there and tells two dates
  };

  // `text` is the template, as in tokenizer_config.json or chat_template.jinja, `bos_token` the
  // spelling of the begin-of-text token. Returns FailedPreconditionError when the model has no
  // template or one that is not known.
  static absl::StatusOr<ChatTemplate> Recognize(std::string_view text, std::string_view bos_token);

  // The prompt. It starts with the begin-of-text token where the template does, so encode it
  // without adding special tokens. Returns InvalidArgumentError naming the field (`field`[2].role)
  // when there are no messages, or one has another role or is not valid UTF-8.
  absl::StatusOr<std::string> Render(std::span<const ChatMessage> messages,
                                     const ChatOptions& options = {},
                                     std::string_view field = "chat.messages") const;

  Form form() const { return form_; }
  // What stands in for a missing system message.
  const std::optional<std::string>& default_system_message() const {
    return default_system_message_;
  }
  // SHA-256 of the template's text, in hexadecimal.
  const std::string& digest() const { return digest_; }

 private:
  ChatTemplate() = default;
  std::string RenderChatMl(std::span<const ChatMessage> messages) const;
  std::string RenderQwen3(std::span<const ChatMessage> messages) const;
  std::string RenderLlama3(std::span<const ChatMessage> messages, const ChatOptions& options) const;

  Form form_ = Form::kChatMl;
  std::optional<std::string> default_system_message_;
  std::string bos_token_;
  std::string digest_;
};

}  // namespace selfsame
