#include "decoder/convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/logprobs.h"

namespace selfsame::decoder {
namespace {

absl::Status Malformed(const v1::Verdict& verdict, std::string_view what) {
  return InternalError(absl::StrCat("malformed verdict for window ", verdict.window_id(),
                                    " of session ", verdict.session_id(), ": ",
                                    absl::string_view(what.data(), what.size())));
}

absl::StatusOr<Outcome> ToOutcome(const v1::Verdict& verdict) {
  switch (verdict.outcome()) {
    case v1::OUTCOME_COMMIT:
      return Outcome::kCommit;
    case v1::OUTCOME_ROLLBACK:
      return Outcome::kRollback;
    case v1::OUTCOME_DISCARDED:
      return Outcome::kDiscarded;
    default:
      return Malformed(verdict, absl::StrCat("outcome ", static_cast<int>(verdict.outcome())));
  }
}

absl::StatusOr<End> ToEnd(const v1::Verdict& verdict) {
  switch (verdict.end()) {
    case v1::END_UNSPECIFIED:
      return End::kNone;
    case v1::END_STOP_TOKEN:
      return End::kStopToken;
    case v1::END_MAX_TOKENS:
      return End::kMaxTokens;
    case v1::END_CONTEXT_LIMIT:
      return End::kContextLimit;
    default:
      return Malformed(verdict, absl::StrCat("end ", static_cast<int>(verdict.end())));
  }
}

LogitRules ToLogitRules(const v1::SamplingParams& sampling, const v1::StopConditions& stop,
                        const RequestDefaults& defaults) {
  LogitRules rules;
  rules.repetition_penalty = sampling.has_repetition_penalty() ? sampling.repetition_penalty()
                                                               : defaults.repetition_penalty;
  rules.presence_penalty = sampling.presence_penalty();
  rules.frequency_penalty = sampling.frequency_penalty();
  rules.logit_bias = SortedBiases(sampling.logit_bias());
  rules.min_tokens = stop.min_tokens();
  return rules;
}

absl::Status ReadAlternatives(const v1::Verdict& verdict, Verdict& result) {
  if (verdict.top_logprobs_size() != 0 && verdict.top_logprobs_size() != verdict.logprobs_size()) {
    return Malformed(verdict, absl::StrCat(verdict.top_logprobs_size(), " top_logprobs for ",
                                           verdict.logprobs_size(), " logprobs"));
  }
  for (const v1::TopLogprobs& top : verdict.top_logprobs()) {
    ASSIGN_OR_RETURN(result.top_logprobs.emplace_back(), selfsame::FromProto(top));
  }
  if (!verdict.has_prompt_logprobs()) return absl::OkStatus();
  if (result.window_id != 0 || verdict.prompt_logprobs().first_position() != 1) {
    return Malformed(verdict, "prompt_logprobs do not belong here");
  }
  ASSIGN_OR_RETURN(result.prompt_logprobs, selfsame::FromProto(verdict.prompt_logprobs()));
  return absl::OkStatus();
}

}  // namespace

RequestDefaults ToRequestDefaults(const GenerationDefaults& defaults) {
  RequestDefaults result;
  result.temperature = defaults.temperature.value_or(result.temperature);
  result.top_k = defaults.top_k.value_or(result.top_k);
  result.top_p = defaults.top_p.value_or(result.top_p);
  result.min_p = defaults.min_p.value_or(result.min_p);
  result.repetition_penalty = defaults.repetition_penalty.value_or(result.repetition_penalty);
  result.eos_token_ids = defaults.eos_token_ids;
  return result;
}

GenerationRequest ToGenerationRequest(const v1::GenerateRequest& request,
                                      std::vector<int32_t> prompt_token_ids,
                                      const RequestDefaults& defaults, int32_t context_limit,
                                      uint64_t drawn_seed) {
  const v1::SamplingParams& sampling = request.sampling();
  const v1::StopConditions& stop = request.stop();
  GenerationRequest result;
  result.temperature = sampling.has_temperature() ? sampling.temperature() : defaults.temperature;
  result.top_k = sampling.has_top_k() ? sampling.top_k() : defaults.top_k;
  result.top_p = sampling.has_top_p() ? sampling.top_p() : defaults.top_p;
  result.min_p = sampling.has_min_p() ? sampling.min_p() : defaults.min_p;
  result.logit_rules = ToLogitRules(sampling, stop, defaults);
  result.seed = sampling.has_seed() ? sampling.seed() : drawn_seed;
  result.max_tokens = stop.has_max_tokens()
                          ? stop.max_tokens()
                          : context_limit - static_cast<int32_t>(prompt_token_ids.size());
  result.stop_strings.assign(stop.stop().begin(), stop.stop().end());
  std::vector<int32_t>& ids = result.stop_token_ids;
  ids.assign(stop.stop_token_ids().begin(), stop.stop_token_ids().end());
  if (!stop.ignore_eos()) {
    ids.insert(ids.end(), defaults.eos_token_ids.begin(), defaults.eos_token_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  result.is_deterministic = request.is_deterministic();
  result.logprobs = request.logprobs();
  result.priority = request.priority();
  result.top_logprobs = request.top_logprobs();
  if (request.has_prompt_logprobs()) result.prompt_logprobs = request.prompt_logprobs();
  if (request.has_expected_fingerprint()) {
    result.expected_fingerprint = request.expected_fingerprint();
  }
  result.stream_candidates = request.stream_candidates();
  result.resume_token_ids.assign(request.resume_token_ids().begin(),
                                 request.resume_token_ids().end());
  result.prompt_token_ids = std::move(prompt_token_ids);
  return result;
}

v1::Started ToProto(const GenerationRequest& request) {
  v1::Started started;
  started.set_request_id(request.request_id);
  started.set_prompt_tokens(static_cast<int32_t>(request.prompt_token_ids.size()));
  v1::ResolvedParams& params = *started.mutable_params();
  params.set_temperature(request.temperature);
  params.set_top_k(request.top_k);
  params.set_top_p(request.top_p);
  params.set_seed(request.seed);
  params.set_max_tokens(request.max_tokens);
  params.set_min_p(request.min_p);
  params.set_repetition_penalty(request.logit_rules.repetition_penalty);
  params.set_presence_penalty(request.logit_rules.presence_penalty);
  params.set_frequency_penalty(request.logit_rules.frequency_penalty);
  params.set_min_tokens(request.logit_rules.min_tokens);
  return started;
}

v1::Chunk ToProto(const ChunkEvent& event, int32_t choice_index) {
  v1::Chunk chunk;
  chunk.set_first_position(event.first_position);
  chunk.mutable_token_ids()->Add(event.token_ids.begin(), event.token_ids.end());
  chunk.mutable_logprobs()->Add(event.logprobs.begin(), event.logprobs.end());
  chunk.set_text(event.text);
  chunk.set_is_candidate(event.is_candidate);
  chunk.set_choice_index(choice_index);
  for (const TopLogprobs& top : event.top_logprobs) {
    *chunk.add_top_logprobs() = selfsame::ToProto(top);
  }
  return chunk;
}

v1::Retract ToProto(const RetractEvent& event, int32_t choice_index) {
  v1::Retract retract;
  retract.set_length(event.length);
  retract.set_choice_index(choice_index);
  return retract;
}

v1::Complete ToProto(const CompleteEvent& event, uint64_t seed, int32_t choice_index) {
  v1::Complete complete;
  complete.set_finish_reason(event.reason == FinishReason::kStop ? v1::FINISH_REASON_STOP
                                                                 : v1::FINISH_REASON_LENGTH);
  if (event.stop_string.has_value()) {
    complete.set_stop_string(*event.stop_string);
  } else if (event.stop_token_id.has_value()) {
    complete.set_stop_token_id(*event.stop_token_id);
  }
  complete.set_prompt_tokens(event.prompt_tokens);
  complete.set_output_tokens(event.output_tokens);
  complete.set_windows(event.windows);
  complete.set_rollbacks(event.rollbacks);
  complete.set_rolled_back_tokens(event.rolled_back_tokens);
  complete.set_redecoded_tokens(event.redecoded_tokens);
  complete.set_cached_prompt_tokens(event.cached_prompt_tokens);
  complete.set_verifier_cached_prompt_tokens(event.verifier_cached_prompt_tokens);
  complete.set_seed(seed);
  complete.set_fingerprint(event.fingerprint);
  complete.set_choice_index(choice_index);
  return complete;
}

v1::OpenSession ToProto(const SessionOpening& opening) {
  v1::OpenSession result;
  result.set_session_id(opening.session_id);
  result.mutable_prompt_token_ids()->Add(opening.prompt_token_ids.begin(),
                                         opening.prompt_token_ids.end());
  result.mutable_committed_token_ids()->Add(opening.committed_token_ids.begin(),
                                            opening.committed_token_ids.end());
  v1::SessionSampling& sampling = *result.mutable_sampling();
  sampling.set_temperature(opening.temperature);
  sampling.set_top_k(opening.top_k);
  sampling.set_top_p(opening.top_p);
  sampling.set_seed(opening.seed);
  sampling.set_min_p(opening.min_p);
  const LogitRules& rules = opening.logit_rules;
  sampling.set_repetition_penalty(rules.repetition_penalty);
  sampling.set_presence_penalty(rules.presence_penalty);
  sampling.set_frequency_penalty(rules.frequency_penalty);
  for (const LogitBias& entry : rules.logit_bias) {
    (*sampling.mutable_logit_bias())[entry.token_id] = entry.bias;
  }
  v1::SessionStop& stop = *result.mutable_stop();
  stop.set_max_tokens(opening.max_tokens);
  stop.set_min_tokens(rules.min_tokens);
  stop.mutable_stop_token_ids()->Add(opening.stop_token_ids.begin(), opening.stop_token_ids.end());
  result.set_choice_index(opening.choice_index);
  result.set_top_logprobs(opening.top_logprobs);
  if (opening.prompt_logprobs) result.set_prompt_logprobs(*opening.prompt_logprobs);
  if (opening.expected_fingerprint.has_value()) {
    result.set_expected_fingerprint(*opening.expected_fingerprint);
  }
  return result;
}

v1::SubmitWindow ToProto(const Window& window) {
  v1::SubmitWindow result;
  result.set_session_id(window.session_id);
  result.set_epoch(window.epoch);
  result.set_window_id(window.window_id);
  result.set_first_position(window.first_position);
  result.mutable_candidate_ids()->Add(window.candidate_ids.begin(), window.candidate_ids.end());
  return result;
}

absl::StatusOr<Verdict> FromProto(const v1::Verdict& verdict) {
  Verdict result;
  result.session_id = verdict.session_id();
  result.window_id = verdict.window_id();
  ASSIGN_OR_RETURN(result.outcome, ToOutcome(verdict));
  ASSIGN_OR_RETURN(result.end, ToEnd(verdict));
  result.epoch = verdict.epoch();
  result.committed_length = verdict.committed_length();
  result.cached_tokens = verdict.cached_tokens();
  // What no clock can have measured is left out: figures are all that it is for.
  if (verdict.has_verifier_time_us() && verdict.verifier_time_us() >= 0 &&
      verdict.verifier_time_us() <= kMaxVerifierTimeUs) {
    result.verifier_time = std::chrono::microseconds(verdict.verifier_time_us());
  }
  if (result.committed_length < 0) return Malformed(verdict, "negative committed_length");
  const bool is_opening = result.window_id == 0;
  if (is_opening && result.outcome != Outcome::kCommit) {
    return Malformed(verdict, "an opening verdict must be a commit");
  }
  const bool needs_token = is_opening || result.outcome == Outcome::kRollback;
  if (needs_token != verdict.has_canonical_token()) {
    return Malformed(verdict, needs_token ? "canonical_token is missing"
                                          : "canonical_token does not belong here");
  }
  if (verdict.has_canonical_token()) {
    if (verdict.canonical_token() < 0) return Malformed(verdict, "negative canonical_token");
    result.canonical_token = verdict.canonical_token();
  }
  if (result.outcome == Outcome::kDiscarded &&
      (result.end != End::kNone || verdict.logprobs_size() > 0)) {
    return Malformed(verdict, "a discarded window commits nothing");
  }
  if (verdict.logprobs_size() > kMaxWindowSize) {
    return Malformed(verdict, absl::StrCat(verdict.logprobs_size(), " logprobs"));
  }
  result.logprobs.assign(verdict.logprobs().begin(), verdict.logprobs().end());
  RETURN_IF_ERROR(ReadAlternatives(verdict, result));
  return result;
}

absl::StatusOr<VerifierInfo> FromProto(const v1::GetVerifierInfoResponse& response) {
  if (response.fingerprint().empty() || response.fingerprint().size() > kMaxFingerprintBytes) {
    return FailedPreconditionError(
        absl::StrCat("its fingerprint is not 1 to ", kMaxFingerprintBytes, " bytes long"));
  }
  if (response.max_window_size() < 1) {
    return FailedPreconditionError(
        absl::StrCat("its max_window_size is ", response.max_window_size()));
  }
  VerifierInfo info;
  info.fingerprint = response.fingerprint();
  info.context_limit = response.context_limit();
  info.vocab_size = response.vocab_size();
  info.max_window_size = response.max_window_size();
  info.max_sessions = response.max_sessions();
  return info;
}

absl::Status FromProto(const v1::SessionError& error) {
  const int code = error.code();
  const bool is_known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status status(is_known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal,
                      error.message());
  if (error.has_retry_after_ms() && error.retry_after_ms() >= 0) {
    SetRetryAfterMs(status, error.retry_after_ms());
  }
  return status;
}

}  // namespace selfsame::decoder
