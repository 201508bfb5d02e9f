#include "common/sampling/logit_rules.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"

namespace selfsame {
namespace {

// All comparisons are written so that NaN fails.

absl::Status ValidatePenalty(std::string_view field, float penalty) {
  if (penalty >= -kMaxPenalty && penalty <= kMaxPenalty) return absl::OkStatus();
  return InvalidArgumentError(field, absl::StrCat("must be between ", -kMaxPenalty, " and ",
                                                  kMaxPenalty, ", not ", penalty));
}

absl::Status ValidateLogitBias(const std::vector<LogitBias>& biases, int32_t vocab_size) {
  if (biases.size() > static_cast<size_t>(kMaxLogitBiases)) {
    return InvalidArgumentError(
        "sampling.logit_bias",
        absl::StrCat("has ", biases.size(), " entries; the limit is ", kMaxLogitBiases));
  }
  for (const LogitBias& entry : biases) {
    if (entry.token_id < 0 || entry.token_id >= vocab_size) {
      return InvalidArgumentError(
          "sampling.logit_bias", absl::StrCat("token id ", entry.token_id,
                                              " is outside the vocabulary, 0 to ", vocab_size - 1));
    }
    if (!(entry.bias >= -kMaxLogitBias && entry.bias <= kMaxLogitBias)) {
      return InvalidArgumentError(absl::StrCat("sampling.logit_bias[", entry.token_id, "]"),
                                  absl::StrCat("must be between ", -kMaxLogitBias, " and ",
                                               kMaxLogitBias, ", not ", entry.bias));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateLogitRules(const LogitRules& rules, int32_t max_tokens, int32_t vocab_size) {
  if (!(rules.repetition_penalty > 0.0f && std::isfinite(rules.repetition_penalty))) {
    return InvalidArgumentError(
        "sampling.repetition_penalty",
        absl::StrCat("must be above 0 and finite, not ", rules.repetition_penalty));
  }
  RETURN_IF_ERROR(ValidatePenalty("sampling.presence_penalty", rules.presence_penalty));
  RETURN_IF_ERROR(ValidatePenalty("sampling.frequency_penalty", rules.frequency_penalty));
  RETURN_IF_ERROR(ValidateLogitBias(rules.logit_bias, vocab_size));
  if (rules.min_tokens < 0 || rules.min_tokens > max_tokens) {
    return InvalidArgumentError(
        "stop.min_tokens", absl::StrCat("must be between 0 and max_tokens, which is ", max_tokens,
                                        ", not ", rules.min_tokens));
  }
  return absl::OkStatus();
}

absl::Status ValidateMinP(float min_p) {
  if (min_p >= 0.0f && min_p <= 1.0f) return absl::OkStatus();
  return InvalidArgumentError("sampling.min_p",
                              absl::StrCat("must be between 0 (off) and 1, not ", min_p));
}

absl::Status ValidateTemperature(float temperature) {
  if (temperature == 0.0f || (temperature >= kMinTemperature && temperature <= kMaxTemperature)) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("sampling.temperature",
                              absl::StrCat("must be 0 (greedy) or between ", kMinTemperature,
                                           " and ", kMaxTemperature, ", not ", temperature));
}

}  // namespace selfsame
