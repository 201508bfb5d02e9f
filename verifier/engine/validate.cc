#include "verifier/engine/validate.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/sampling/logit_rules.h"

namespace selfsame::verifier {
namespace {

absl::Status ValidateTokenIds(std::string_view field, std::span<const int32_t> token_ids,
                              int32_t vocab_size) {
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] < 0 || token_ids[i] >= vocab_size) {
      return InvalidArgumentError(field, absl::StrCat("token id ", token_ids[i], " at index ", i,
                                                      " is outside 0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateSampling(const SessionOpening& opening) {
  RETURN_IF_ERROR(ValidateTemperature(opening.temperature));
  if (opening.top_k < 0) {
    return InvalidArgumentError("sampling.top_k", "must not be negative");
  }
  if (!(opening.top_p > 0.0f && opening.top_p <= 1.0f)) {
    return InvalidArgumentError("sampling.top_p", "must be above 0 and at most 1");
  }
  RETURN_IF_ERROR(ValidateMinP(opening.min_p));
  if (opening.choice_index < 0) {
    return InvalidArgumentError("choice_index", "must not be negative");
  }
  return absl::OkStatus();
}

absl::Status ValidateLogprobs(const SessionOpening& opening) {
  const auto check = [](std::string_view field, int32_t count) -> absl::Status {
    if (count >= 0 && count <= kMaxTopLogprobs) return absl::OkStatus();
    return InvalidArgumentError(field,
                                absl::StrCat("must be 0 to ", kMaxTopLogprobs, ", not ", count));
  };
  RETURN_IF_ERROR(check("top_logprobs", opening.top_logprobs));
  if (!opening.prompt_logprobs) return absl::OkStatus();
  RETURN_IF_ERROR(check("prompt_logprobs", *opening.prompt_logprobs));
  const int64_t count = static_cast<int64_t>(opening.prompt_token_ids.size()) *
                        (1 + int64_t{*opening.prompt_logprobs});
  if (count <= kMaxPromptLogprobs) return absl::OkStatus();
  return InvalidArgumentError("prompt_logprobs",
                              absl::StrCat("asks for ", count,
                                           " logprobs, alternatives included; the "
                                           "limit is ",
                                           kMaxPromptLogprobs));
}

// Committed tokens that already reach an end leave nothing to verify.
absl::Status ValidateStop(const SessionOpening& opening, int32_t vocab_size) {
  if (opening.max_tokens < 1) {
    return InvalidArgumentError("stop.max_tokens", "must be at least 1");
  }
  if (opening.stop_token_ids.size() > static_cast<size_t>(kMaxSessionStopTokenIds)) {
    return InvalidArgumentError("stop.stop_token_ids",
                                absl::StrCat("has ", opening.stop_token_ids.size(),
                                             " ids; the limit is ", kMaxSessionStopTokenIds));
  }
  RETURN_IF_ERROR(ValidateTokenIds("stop.stop_token_ids", opening.stop_token_ids, vocab_size));
  if (opening.committed_token_ids.size() >= static_cast<size_t>(opening.max_tokens)) {
    return InvalidArgumentError(
        "committed_token_ids",
        absl::StrCat("must be fewer than max_tokens, which is ", opening.max_tokens));
  }
  const auto& stops = opening.stop_token_ids;
  for (const int32_t token_id : opening.committed_token_ids) {
    if (std::find(stops.begin(), stops.end(), token_id) != stops.end()) {
      return InvalidArgumentError("committed_token_ids",
                                  absl::StrCat("contains the stop token ", token_id));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateOpening(const SessionOpening& opening, const VerifierInfo& info) {
  if (opening.expected_fingerprint && *opening.expected_fingerprint != info.fingerprint) {
    return FailedPreconditionError(absl::StrCat("expected_fingerprint: this verifier's is ",
                                                info.fingerprint, ", not ",
                                                *opening.expected_fingerprint));
  }
  if (opening.prompt_token_ids.empty()) {
    return InvalidArgumentError("prompt_token_ids", "must not be empty");
  }
  const size_t length = opening.prompt_token_ids.size() + opening.committed_token_ids.size();
  if (length >= static_cast<size_t>(info.context_limit)) {
    return InvalidArgumentError(
        "prompt_token_ids",
        absl::StrCat("prompt and committed tokens, ", length,
                     " in all, must be fewer than the context limit of ", info.context_limit));
  }
  RETURN_IF_ERROR(ValidateTokenIds("prompt_token_ids", opening.prompt_token_ids, info.vocab_size));
  RETURN_IF_ERROR(
      ValidateTokenIds("committed_token_ids", opening.committed_token_ids, info.vocab_size));
  RETURN_IF_ERROR(ValidateSampling(opening));
  RETURN_IF_ERROR(ValidateLogprobs(opening));
  RETURN_IF_ERROR(ValidateStop(opening, info.vocab_size));
  return ValidateLogitRules(opening.logit_rules, opening.max_tokens, info.vocab_size);
}

absl::Status ValidateWindow(const Window& window, const VerifierInfo& info) {
  if (window.candidate_ids.empty() ||
      window.candidate_ids.size() > static_cast<size_t>(info.max_window_size)) {
    return InvalidArgumentError("candidate_ids",
                                absl::StrCat("a window has 1 to ", info.max_window_size,
                                             " candidates, not ", window.candidate_ids.size()));
  }
  return ValidateTokenIds("candidate_ids", window.candidate_ids, info.vocab_size);
}

}  // namespace selfsame::verifier
