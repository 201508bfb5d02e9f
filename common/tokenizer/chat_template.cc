#include "common/tokenizer/chat_template.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/errors.h"
#include "common/sha256.h"
#include "common/tokenizer/utf8.h"

namespace selfsame {
namespace {

// Reduces a Jinja template to what decides its output, so that templates that differ in layout,
// quotes or attribute notation compare equal: drops comments, text outside tags that is white
// space, and white space in tags outside string literals; resolves \n in literals.
std::string Squeeze(std::string_view text) {
  std::string result;
  bool in_tag = false;
  char quote = 0;  // of the literal we are in
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const std::string_view pair = text.substr(i, 2);
    if (quote != 0) {
      if (pair == "\\n") {
        result += '\n';
        ++i;
      } else if (c == '\\' && pair.size() == 2) {
        result += pair;
        ++i;
      } else {
        result += c == quote ? '\'' : c;
        if (c == quote) quote = 0;
      }
    } else if (pair == "{#") {
      const size_t end = text.find("#}", i + 2);
      if (end == std::string_view::npos) return result;
      i = end + 1;
    } else if (in_tag && (c == '\'' || c == '"')) {
      quote = c;
      result += '\'';
    } else if (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
      if (pair == "{{" || pair == "{%") in_tag = true;
      if (pair == "}}" || pair == "%}") in_tag = false;
      result += c;
    }
  }
  return absl::StrReplaceAll(result, {{".role", "['role']"}, {".content", "['content']"}});
}

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool ContainsAll(std::string_view text, std::span<const std::string_view> parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return Contains(text, part); });
}

// Parts of squeezed templates. A form is recognised by the parts that produce its output, and by
// the absence of others that would change it.
constexpr std::string_view kLlamaMessage =
    "'<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+message['content']|trim+"
    "'<|eot_id|>'";
constexpr std::string_view kLlamaAnswer = "'<|start_header_id|>assistant<|end_header_id|>\n\n'";
constexpr std::string_view kLlama31Parts[] = {
    kLlamaMessage,
    kLlamaAnswer,
    "setsystem_message=messages[0]['content']|trim",
    "'Cutting Knowledge Date: December 2023\n'",
    "'Today Date: '+date_string+'\n\n'",
};
constexpr std::string_view kChatMlMessage =
    "'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'+'\n'";
constexpr std::string_view kChatMlAnswer = "'<|im_start|>assistant\n'";
constexpr std::string_view kQwen3NoThinking =
    "'<|im_start|>assistant\n'}}{%-ifenable_thinkingisdefinedandenable_thinkingisfalse%}"
    "{{-'<think>\n\n</think>\n\n'}}{%-endif%}{%-endif%}";
constexpr std::string_view kQwen3Parts[] = {
    "'<|im_start|>system\n'+messages[0]['content']+'<|im_end|>\n'",
    "ifloop.index0>ns.last_query_index",
    "ifloop.lastor(notloop.lastandreasoning_content)",
    "'\n<think>\n'+reasoning_content.strip('\n')+'\n</think>\n\n'+content.lstrip('\n')",
    kQwen3NoThinking,
};
constexpr std::string_view kNotChatMl[] = {"|trim", ".strip(", "think", "date_string", "strftime"};

constexpr std::string_view kDefaultSystemStart = "'<|im_start|>system\n";
constexpr std::string_view kDefaultSystemEnd = "<|im_end|>\n'";

// Finds the literal system turns of a squeezed ChatML template. False when they are ambiguous.
bool FindDefaultSystem(std::string_view squeezed, std::optional<std::string>* message) {
  for (size_t at = squeezed.find(kDefaultSystemStart); at != std::string_view::npos;
       at = squeezed.find(kDefaultSystemStart, at + 1)) {
    const std::string_view rest = squeezed.substr(at + kDefaultSystemStart.size());
    const std::string_view literal = rest.substr(0, rest.find('\'') + 1);
    if (!literal.ends_with(kDefaultSystemEnd)) continue;  // goes on with the given message
    if (Contains(literal, "\\")) return false;
    std::string found(literal.substr(0, literal.size() - kDefaultSystemEnd.size()));
    if (message->has_value() && **message != found) return false;
    *message = std::move(found);
  }
  return true;
}

// What str.strip() of Python removes, and with it Jinja's trim.
bool IsPythonSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::string_view Trim(std::string_view text) {
  size_t start = 0;
  for (size_t offset = 0; offset < text.size(); start = offset) {
    if (!IsPythonSpace(NextCodePoint(text, &offset))) break;
  }
  size_t end = text.size();
  while (end > start) {
    const size_t previous = PreviousCodePointStart(text, end);
    size_t offset = previous;
    if (!IsPythonSpace(NextCodePoint(text, &offset))) break;
    end = previous;
  }
  return text.substr(start, end - start);
}

std::string_view StripNewlinesLeft(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view StripNewlinesRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string ChatMlTurn(std::string_view role, std::string_view content) {
  std::string turn("<|im_start|>");
  return turn.append(role).append("\n").append(content).append("<|im_end|>\n");
}

std::string LlamaTurn(std::string_view role, std::string_view content) {
  std::string turn("<|start_header_id|>");
  return turn.append(role).append("<|end_header_id|>\n\n").append(content).append("<|eot_id|>");
}

// The index of the message that the answers after it reply to: Qwen3 keeps thoughts after it only.
size_t LastQueryIndex(std::span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    const bool is_tool_response =
        content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role == "user" && !is_tool_response) return i;
  }
  return messages.size() - 1;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Recognize(std::string_view text,
                                                     std::string_view bos_token) {
  if (text.empty()) return FailedPreconditionError("the model has no chat template");
  const std::string squeezed = Squeeze(text);
  ChatTemplate result;
  result.bos_token_ = bos_token;
  result.digest_ = Sha256().Update(text).HexDigest();
  const bool is_chat_ml =
      Contains(squeezed, kChatMlMessage) && Contains(squeezed, kChatMlAnswer) &&
      std::none_of(std::begin(kNotChatMl), std::end(kNotChatMl),
                   [&](std::string_view part) { return Contains(squeezed, part); });
  if (ContainsAll(squeezed, kLlama31Parts)) {
    result.form_ = Form::kLlama31;
  } else if (Contains(squeezed, kLlamaMessage) && Contains(squeezed, kLlamaAnswer) &&
             Contains(squeezed, "setcontent=bos_token+content") &&
             !Contains(squeezed, "date_string") && !Contains(squeezed, "strftime")) {
    result.form_ = Form::kLlama3;
  } else if (ContainsAll(squeezed, kQwen3Parts)) {
    result.form_ = Form::kQwen3;
  } else if (is_chat_ml && FindDefaultSystem(squeezed, &result.default_system_message_)) {
    result.form_ = Form::kChatMl;
  } else {
    return FailedPreconditionError(absl::StrCat(
        "the model's chat template (SHA-256 ", result.digest_,
        ") is not known; known are ChatML, Qwen3, Llama 3 and Llama 3.1. Send a prompt instead"));
  }
  return result;
}

absl::StatusOr<std::string> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                 const ChatOptions& options,
                                                 std::string_view field) const {
  if (messages.empty()) return InvalidArgumentError(field, "is empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string item = absl::StrCat(std::string(field), "[", i, "]");
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return InvalidArgumentError(absl::StrCat(item, ".role"),
                                  "must be \"system\", \"user\" or \"assistant\"");
    }
    const size_t invalid = FirstInvalidUtf8(messages[i].content);
    if (invalid != std::string_view::npos) {
      return InvalidArgumentError(absl::StrCat(item, ".content"),
                                  absl::StrCat("is not valid UTF-8 at byte ", invalid));
    }
  }
  switch (form_) {
    case Form::kLlama3:
    case Form::kLlama31: {
      std::string prompt = RenderLlama3(messages, options);
      if (options.add_generation_prompt) {
        prompt += "<|start_header_id|>assistant<|end_header_id|>\n\n";
      }
      return prompt;
    }
    case Form::kChatMl:
    case Form::kQwen3:
      break;
  }
  std::string prompt = form_ == Form::kQwen3 ? RenderQwen3(messages) : RenderChatMl(messages);
  if (options.add_generation_prompt) {
    prompt += "<|im_start|>assistant\n";
    if (form_ == Form::kQwen3 && !options.enable_thinking) prompt += "<think>\n\n</think>\n\n";
  }
  return prompt;
}

std::string ChatTemplate::RenderChatMl(std::span<const ChatMessage> messages) const {
  std::string prompt;
  if (default_system_message_.has_value() && messages[0].role != "system") {
    prompt += ChatMlTurn("system", *default_system_message_);
  }
  for (const ChatMessage& message : messages) prompt += ChatMlTurn(message.role, message.content);
  return prompt;
}

std::string ChatTemplate::RenderQwen3(std::span<const ChatMessage> messages) const {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const size_t last_query_index = LastQueryIndex(messages);
  std::string prompt;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::string_view content = messages[i].content;
    if (messages[i].role != "assistant") {
      prompt += ChatMlTurn(messages[i].role, content);
      continue;
    }
    std::string_view thought;
    if (const size_t first_close = content.find(kClose); first_close != std::string_view::npos) {
      thought = StripNewlinesRight(content.substr(0, first_close));
      const size_t open = thought.rfind(kOpen);
      if (open != std::string_view::npos) thought = thought.substr(open + kOpen.size());
      thought = StripNewlinesLeft(thought);
      content = StripNewlinesLeft(content.substr(content.rfind(kClose) + kClose.size()));
    }
    const bool is_last = i + 1 == messages.size();
    if (i > last_query_index && (is_last || !thought.empty())) {
      std::string with_thought("<think>\n");
      with_thought.append(StripNewlinesRight(StripNewlinesLeft(thought)))
          .append("\n</think>\n\n")
          .append(StripNewlinesLeft(content));
      prompt += ChatMlTurn("assistant", with_thought);
    } else {
      prompt += ChatMlTurn("assistant", content);
    }
  }
  return prompt;
}

std::string ChatTemplate::RenderLlama3(std::span<const ChatMessage> messages,
                                       const ChatOptions& options) const {
  std::string prompt = bos_token_;
  if (form_ == Form::kLlama31) {
    std::string system = "Cutting Knowledge Date: December 2023\nToday Date: ";
    system.append(options.date).append("\n\n");
    if (messages[0].role == "system") {
      system.append(Trim(messages[0].content));
      messages = messages.subspan(1);
    }
    prompt += LlamaTurn("system", system);
  }
  for (const ChatMessage& message : messages) {
    prompt += LlamaTurn(message.role, Trim(message.content));
  }
  return prompt;
}

}  // namespace selfsame
