#pragma once

// Between the messages of logprobs.proto, which both services speak, and plain data.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/token_logprob.h"
#include "selfsame/v1/logprobs.pb.h"

namespace selfsame {

v1::TopLogprobs ToProto(const TopLogprobs& top);

// `entries` are of consecutive positions. All of them have alternatives, or none.
v1::PromptLogprobs ToProto(int32_t first_position, std::span<const PromptLogprob> entries);

// INTERNAL when the message contradicts itself or says what no logprob can be.
absl::StatusOr<TopLogprobs> FromProto(const v1::TopLogprobs& proto);
absl::StatusOr<std::vector<PromptLogprob>> FromProto(const v1::PromptLogprobs& proto);

}  // namespace selfsame
