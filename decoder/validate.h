#pragma once

// Every check of what a client sends. Each failure is one INVALID_ARGUMENT that names the field and
// the limit.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "selfsame/v1/inference.pb.h"

namespace selfsame::decoder {

struct RequestLimits {
  int32_t context_limit = 0;         // tokens, prompt and output together
  int32_t vocab_size = 0;            // of the model
  int32_t tokenizer_vocab_size = 0;  // ids that have a text; at most vocab_size
};

// What can be checked before the prompt is tokenised.
absl::Status ValidateGenerate(const v1::GenerateRequest& request, const RequestLimits& limits);

// What needs the number of prompt tokens: the prompt is not empty, leaves room for an output token,
// max_tokens fits into that room, and prompt_logprobs asks for no more than one message holds.
absl::Status ValidateLengths(int64_t prompt_tokens, const v1::GenerateRequest& request,
                             const RequestLimits& limits);

// What needs the resolved parameters: resumed tokens are fewer than max_tokens, and have a seed to
// go on with unless the temperature is 0.
absl::Status ValidateResume(const v1::GenerateRequest& request, float temperature,
                            int32_t max_tokens);

absl::Status ValidateTokenize(const v1::TokenizeRequest& request);
absl::Status ValidateDetokenize(const v1::DetokenizeRequest& request, const RequestLimits& limits);

// The x-request-id of a call: 1 to kMaxRequestIdBytes printable ASCII characters without spaces.
absl::Status ValidateRequestId(std::string_view request_id);

// Why `bytes` could not be parsed as `message`: the first string field that is not valid UTF-8, or
// a malformed message.
absl::Status DescribeParseFailure(const google::protobuf::Descriptor& message,
                                  std::string_view bytes);

}  // namespace selfsame::decoder
