#include "decoder/validate.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/sampling/logit_rules.h"
#include "common/tokenizer/utf8.h"
#include "google/protobuf/unknown_field_set.h"

namespace selfsame::decoder {
namespace {

absl::Status CheckTextSize(std::string_view field, size_t size_bytes) {
  if (size_bytes <= static_cast<size_t>(kMaxPromptBytes)) return absl::OkStatus();
  return InvalidArgumentError(
      field, absl::StrCat("is ", size_bytes, " bytes long; the limit is ", kMaxPromptBytes));
}

absl::Status CheckTokenIds(std::string_view field,
                           const google::protobuf::RepeatedField<int32_t>& ids,
                           int32_t vocab_size) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return InvalidArgumentError(
        absl::StrCat(absl::string_view(field.data(), field.size()), "[", i, "]"),
        absl::StrCat("token id ", ids[i], " is outside the vocabulary, 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::Status ValidateChat(const v1::ChatMessages& chat) {
  if (chat.messages().empty()) {
    return InvalidArgumentError("chat.messages", "must not be empty");
  }
  if (chat.messages_size() > kMaxChatMessages) {
    return InvalidArgumentError(
        "chat.messages",
        absl::StrCat("has ", chat.messages_size(), " messages; the limit is ", kMaxChatMessages));
  }
  size_t size_bytes = 0;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    if (message.role() != "system" && message.role() != "user" && message.role() != "assistant") {
      return InvalidArgumentError(absl::StrCat("chat.messages[", i, "].role"),
                                  "must be system, user or assistant");
    }
    size_bytes += message.content().size();
  }
  return CheckTextSize("chat.messages", size_bytes);
}

absl::Status ValidatePrompt(const v1::GenerateRequest& request, const RequestLimits& limits) {
  switch (request.input_case()) {
    case v1::GenerateRequest::kPrompt:
      if (request.prompt().empty()) return InvalidArgumentError("prompt", "must not be empty");
      return CheckTextSize("prompt", request.prompt().size());
    case v1::GenerateRequest::kPromptTokenIds:
      // The length comes first: a list far too long is not worth reading.
      RETURN_IF_ERROR(ValidateLengths(request.prompt_token_ids().ids_size(), request, limits));
      return CheckTokenIds("prompt_token_ids", request.prompt_token_ids().ids(), limits.vocab_size);
    case v1::GenerateRequest::kChat:
      return ValidateChat(request.chat());
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidArgumentError("input", "one of prompt, prompt_token_ids and chat must be set");
}

absl::Status ValidateSampling(const v1::SamplingParams& sampling) {
  if (sampling.has_temperature()) RETURN_IF_ERROR(ValidateTemperature(sampling.temperature()));
  if (sampling.has_top_k() && sampling.top_k() < 0) {
    return InvalidArgumentError(
        "sampling.top_k", absl::StrCat("must be 0 (off) or positive, not ", sampling.top_k()));
  }
  if (sampling.has_top_p() && !(sampling.top_p() > 0.0f && sampling.top_p() <= 1.0f)) {
    return InvalidArgumentError("sampling.top_p",
                                absl::StrCat("must be in (0, 1], not ", sampling.top_p()));
  }
  return ValidateMinP(sampling.min_p());
}

// The rules as far as the client sets them; defaults are valid.
absl::Status ValidateRules(const v1::SamplingParams& sampling, const v1::StopConditions& stop,
                           const RequestLimits& limits) {
  LogitRules rules;
  if (sampling.has_repetition_penalty()) rules.repetition_penalty = sampling.repetition_penalty();
  rules.presence_penalty = sampling.presence_penalty();
  rules.frequency_penalty = sampling.frequency_penalty();
  rules.logit_bias = SortedBiases(sampling.logit_bias());
  rules.min_tokens = stop.min_tokens();
  const int32_t max_tokens = stop.has_max_tokens() ? stop.max_tokens() : limits.context_limit - 1;
  return ValidateLogitRules(rules, max_tokens, limits.vocab_size);
}

absl::Status ValidateStop(const v1::StopConditions& stop, const RequestLimits& limits) {
  if (stop.has_max_tokens() && stop.max_tokens() < 1) {
    return InvalidArgumentError("stop.max_tokens",
                                absl::StrCat("must be at least 1, not ", stop.max_tokens()));
  }
  if (stop.stop_size() > kMaxStopStrings) {
    return InvalidArgumentError(
        "stop.stop",
        absl::StrCat("has ", stop.stop_size(), " strings; the limit is ", kMaxStopStrings));
  }
  for (int i = 0; i < stop.stop_size(); ++i) {
    const std::string field = absl::StrCat("stop.stop[", i, "]");
    if (stop.stop(i).empty()) return InvalidArgumentError(field, "must not be empty");
    if (stop.stop(i).size() > kMaxStopStringBytes) {
      return InvalidArgumentError(
          field, absl::StrCat("is ", stop.stop(i).size(), " bytes long; the limit is ",
                              kMaxStopStringBytes));
    }
  }
  if (stop.stop_token_ids_size() > kMaxStopTokenIds) {
    return InvalidArgumentError(
        "stop.stop_token_ids",
        absl::StrCat("has ", stop.stop_token_ids_size(), " ids; the limit is ", kMaxStopTokenIds));
  }
  return CheckTokenIds("stop.stop_token_ids", stop.stop_token_ids(), limits.vocab_size);
}

absl::Status CheckTopCount(std::string_view field, int32_t count) {
  if (count >= 0 && count <= kMaxTopLogprobs) return absl::OkStatus();
  return InvalidArgumentError(field,
                              absl::StrCat("must be 0 to ", kMaxTopLogprobs, ", not ", count));
}

absl::Status ValidateOutputs(const v1::GenerateRequest& request) {
  if (request.has_n() && (request.n() < 1 || request.n() > kMaxChoices)) {
    return InvalidArgumentError("n",
                                absl::StrCat("must be 1 to ", kMaxChoices, ", not ", request.n()));
  }
  if (request.n() > 1 && request.resume_token_ids_size() > 0) {
    return InvalidArgumentError("n", "must be 1 with resume_token_ids, which are of one choice");
  }
  RETURN_IF_ERROR(CheckTopCount("top_logprobs", request.top_logprobs()));
  if (request.top_logprobs() > 0 && !request.logprobs()) {
    return InvalidArgumentError("top_logprobs", "needs logprobs");
  }
  return CheckTopCount("prompt_logprobs", request.prompt_logprobs());
}

std::string_view PromptField(const v1::GenerateRequest& request) {
  switch (request.input_case()) {
    case v1::GenerateRequest::kPromptTokenIds:
      return "prompt_token_ids";
    case v1::GenerateRequest::kChat:
      return "chat";
    default:
      return "prompt";
  }
}

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// The path of the first string in `fields`, which spell a `message`, that is not valid UTF-8; empty
// when there is none.
std::string FindInvalidUtf8(const Descriptor& message, const UnknownFieldSet& fields) {
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* descriptor = message.FindFieldByNumber(field.number());
    if (descriptor == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    if (descriptor->type() == FieldDescriptor::TYPE_STRING) {
      if (FirstInvalidUtf8(field.length_delimited()) != std::string_view::npos) {
        return descriptor->name();
      }
    } else if (descriptor->type() == FieldDescriptor::TYPE_MESSAGE) {
      UnknownFieldSet inner;
      if (!inner.ParseFromString(field.length_delimited())) continue;
      const std::string path = FindInvalidUtf8(*descriptor->message_type(), inner);
      if (!path.empty()) return absl::StrCat(descriptor->name(), ".", path);
    }
  }
  return "";
}

}  // namespace

absl::Status ValidateGenerate(const v1::GenerateRequest& request, const RequestLimits& limits) {
  RETURN_IF_ERROR(ValidateSampling(request.sampling()));
  RETURN_IF_ERROR(ValidateStop(request.stop(), limits));
  RETURN_IF_ERROR(ValidateRules(request.sampling(), request.stop(), limits));
  if (request.priority() < -kMaxPriority || request.priority() > kMaxPriority) {
    return InvalidArgumentError(
        "priority", absl::StrCat("must be from ", -kMaxPriority, " to ", kMaxPriority, ", not ",
                                 request.priority()));
  }
  if (request.has_expected_fingerprint()) {
    if (!request.is_deterministic()) {
      return InvalidArgumentError("expected_fingerprint",
                                  "needs is_deterministic: an ordinary request has no fingerprint");
    }
    if (request.expected_fingerprint().empty() ||
        request.expected_fingerprint().size() > kMaxFingerprintBytes) {
      return InvalidArgumentError(
          "expected_fingerprint",
          absl::StrCat("must be 1 to ", kMaxFingerprintBytes, " bytes long"));
    }
  }
  if (request.stream_candidates() && !request.is_deterministic()) {
    return InvalidArgumentError("stream_candidates",
                                "needs is_deterministic: an ordinary request has no candidates");
  }
  if (request.resume_token_ids_size() >= limits.context_limit) {
    return InvalidArgumentError("resume_token_ids",
                                absl::StrCat("has ", request.resume_token_ids_size(),
                                             " ids; the limit is ", limits.context_limit - 1));
  }
  RETURN_IF_ERROR(CheckTokenIds("resume_token_ids", request.resume_token_ids(), limits.vocab_size));
  RETURN_IF_ERROR(ValidateOutputs(request));
  return ValidatePrompt(request, limits);
}

absl::Status ValidateLengths(int64_t prompt_tokens, const v1::GenerateRequest& request,
                             const RequestLimits& limits) {
  const std::string_view field = PromptField(request);
  if (prompt_tokens < 1) {
    return InvalidArgumentError(field, "must have at least one token");
  }
  if (prompt_tokens >= limits.context_limit) {
    return InvalidArgumentError(
        field, absl::StrCat("has ", prompt_tokens, " tokens; the limit is ",
                            limits.context_limit - 1, ", one less than the context limit"));
  }
  const int64_t room = limits.context_limit - prompt_tokens;
  if (request.stop().has_max_tokens() && request.stop().max_tokens() > room) {
    return InvalidArgumentError("stop.max_tokens",
                                absl::StrCat("is ", request.stop().max_tokens(), "; after ",
                                             prompt_tokens, " prompt tokens the context limit of ",
                                             limits.context_limit, " leaves room for ", room));
  }
  if (request.stop().min_tokens() > room) {
    return InvalidArgumentError("stop.min_tokens",
                                absl::StrCat("is ", request.stop().min_tokens(), "; after ",
                                             prompt_tokens, " prompt tokens the context limit of ",
                                             limits.context_limit, " leaves room for ", room));
  }
  const int64_t logprobs = prompt_tokens * (1 + int64_t{request.prompt_logprobs()});
  if (request.has_prompt_logprobs() && logprobs > kMaxPromptLogprobs) {
    return InvalidArgumentError(
        "prompt_logprobs",
        absl::StrCat("asks for ", logprobs, " logprobs, alternatives included; the limit is ",
                     kMaxPromptLogprobs));
  }
  return absl::OkStatus();
}

absl::Status ValidateResume(const v1::GenerateRequest& request, float temperature,
                            int32_t max_tokens) {
  const int32_t count = request.resume_token_ids_size();
  if (count == 0) return absl::OkStatus();
  if (count >= max_tokens) {
    return InvalidArgumentError(
        "resume_token_ids",
        absl::StrCat("has ", count, " ids; it must have fewer than max_tokens, ", max_tokens));
  }
  if (temperature > 0.0f && !request.sampling().has_seed()) {
    return InvalidArgumentError(
        "resume_token_ids", "needs sampling.seed: with another seed the answer would not go on");
  }
  return absl::OkStatus();
}

absl::Status ValidateTokenize(const v1::TokenizeRequest& request) {
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      return CheckTextSize("text", request.text().size());
    case v1::TokenizeRequest::kChat:
      return ValidateChat(request.chat());
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidArgumentError("input", "one of text and chat must be set");
}

absl::Status ValidateDetokenize(const v1::DetokenizeRequest& request, const RequestLimits& limits) {
  if (request.token_ids_size() > kMaxDetokenizeTokens) {
    return InvalidArgumentError(
        "token_ids", absl::StrCat("has ", request.token_ids_size(), " ids; the limit is ",
                                  kMaxDetokenizeTokens));
  }
  return CheckTokenIds("token_ids", request.token_ids(), limits.tokenizer_vocab_size);
}

absl::Status ValidateRequestId(std::string_view request_id) {
  bool is_valid = !request_id.empty() && request_id.size() <= kMaxRequestIdBytes;
  for (const char c : request_id) is_valid = is_valid && c > ' ' && c <= '~';
  if (is_valid) return absl::OkStatus();
  return InvalidArgumentError("x-request-id",
                              absl::StrCat("must be 1 to ", kMaxRequestIdBytes,
                                           " printable ASCII characters without spaces"));
}

absl::Status DescribeParseFailure(const Descriptor& message, std::string_view bytes) {
  UnknownFieldSet fields;
  if (fields.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    const std::string path = FindInvalidUtf8(message, fields);
    if (!path.empty()) return InvalidArgumentError(path, "must be valid UTF-8");
  }
  return InvalidArgumentError("request", absl::StrCat("is not a valid ", message.full_name()));
}

}  // namespace selfsame::decoder
