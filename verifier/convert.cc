#include "verifier/convert.h"

#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/errors.h"
#include "common/rpc/logprobs.h"

namespace selfsame::verifier {
namespace {

template <typename Repeated>
std::vector<int32_t> ToVector(const Repeated& values) {
  return {values.begin(), values.end()};
}

LogitRules ToLogitRules(const v1::SessionSampling& sampling, const v1::SessionStop& stop) {
  LogitRules rules;
  if (sampling.has_repetition_penalty()) rules.repetition_penalty = sampling.repetition_penalty();
  rules.presence_penalty = sampling.presence_penalty();
  rules.frequency_penalty = sampling.frequency_penalty();
  rules.logit_bias = SortedBiases(sampling.logit_bias());
  rules.min_tokens = stop.min_tokens();
  return rules;
}

SessionOpening FromProto(const v1::OpenSession& proto) {
  SessionOpening opening;
  opening.session_id = proto.session_id();
  opening.prompt_token_ids = ToVector(proto.prompt_token_ids());
  opening.committed_token_ids = ToVector(proto.committed_token_ids());
  opening.temperature = proto.sampling().temperature();
  opening.top_k = proto.sampling().top_k();
  opening.top_p = proto.sampling().top_p();
  opening.min_p = proto.sampling().min_p();
  opening.logit_rules = ToLogitRules(proto.sampling(), proto.stop());
  opening.seed = proto.sampling().seed();
  opening.choice_index = proto.choice_index();
  opening.max_tokens = proto.stop().max_tokens();
  opening.stop_token_ids = ToVector(proto.stop().stop_token_ids());
  if (proto.has_expected_fingerprint()) opening.expected_fingerprint = proto.expected_fingerprint();
  opening.top_logprobs = proto.top_logprobs();
  if (proto.has_prompt_logprobs()) opening.prompt_logprobs = proto.prompt_logprobs();
  return opening;
}

Window FromProto(const v1::SubmitWindow& proto) {
  return {.session_id = proto.session_id(),
          .epoch = proto.epoch(),
          .window_id = proto.window_id(),
          .first_position = proto.first_position(),
          .candidate_ids = ToVector(proto.candidate_ids())};
}

v1::Outcome ToProto(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCommit:
      return v1::OUTCOME_COMMIT;
    case Outcome::kRollback:
      return v1::OUTCOME_ROLLBACK;
    case Outcome::kDiscarded:
      return v1::OUTCOME_DISCARDED;
  }
  SELFSAME_CHECK(false);
  return v1::OUTCOME_UNSPECIFIED;
}

v1::End ToProto(End end) {
  switch (end) {
    case End::kNone:
      return v1::END_UNSPECIFIED;
    case End::kStopToken:
      return v1::END_STOP_TOKEN;
    case End::kMaxTokens:
      return v1::END_MAX_TOKENS;
    case End::kContextLimit:
      return v1::END_CONTEXT_LIMIT;
  }
  SELFSAME_CHECK(false);
  return v1::END_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<StreamMessage> FromProto(const v1::VerifyRequest& request) {
  switch (request.message_case()) {
    case v1::VerifyRequest::kOpenSession:
      return FromProto(request.open_session());
    case v1::VerifyRequest::kSubmitWindow:
      return FromProto(request.submit_window());
    case v1::VerifyRequest::kCloseSession:
      return SessionClosing{.session_id = request.close_session().session_id()};
    case v1::VerifyRequest::MESSAGE_NOT_SET:
      break;
  }
  return InvalidArgumentError(
      "message", "a request opens or closes a session or submits a window; this one does neither");
}

v1::VerifyResponse ToProto(const Verdict& verdict) {
  v1::VerifyResponse response;
  v1::Verdict& proto = *response.mutable_verdict();
  proto.set_session_id(verdict.session_id);
  proto.set_window_id(verdict.window_id);
  proto.set_outcome(ToProto(verdict.outcome));
  proto.set_epoch(verdict.epoch);
  proto.set_committed_length(verdict.committed_length);
  if (verdict.canonical_token) proto.set_canonical_token(*verdict.canonical_token);
  proto.mutable_logprobs()->Add(verdict.logprobs.begin(), verdict.logprobs.end());
  proto.set_end(ToProto(verdict.end));
  proto.set_cached_tokens(verdict.cached_tokens);
  if (verdict.verifier_time) {
    proto.set_verifier_time_us(
        std::chrono::duration_cast<std::chrono::microseconds>(*verdict.verifier_time).count());
  }
  for (const TopLogprobs& top : verdict.top_logprobs) {
    *proto.add_top_logprobs() = selfsame::ToProto(top);
  }
  if (!verdict.prompt_logprobs.empty()) {
    *proto.mutable_prompt_logprobs() =
        selfsame::ToProto(/*first_position=*/1, verdict.prompt_logprobs);
  }
  return response;
}

v1::VerifyResponse ToProto(uint64_t session_id, const absl::Status& status) {
  v1::VerifyResponse response;
  v1::SessionError& error = *response.mutable_session_error();
  error.set_session_id(session_id);
  error.set_code(static_cast<int32_t>(status.code()));
  error.set_message(std::string(status.message()));
  if (const auto retry_after_ms = RetryAfterMsOf(status)) error.set_retry_after_ms(*retry_after_ms);
  return response;
}

v1::GetVerifierInfoResponse ToProto(const VerifierInfo& info) {
  v1::GetVerifierInfoResponse response;
  response.set_fingerprint(info.fingerprint);
  response.set_version(SELFSAME_VERSION);
  response.set_arithmetic(info.arithmetic);
  response.set_context_limit(info.context_limit);
  response.set_vocab_size(info.vocab_size);
  response.set_max_window_size(info.max_window_size);
  response.set_max_sessions(info.max_sessions);
  response.mutable_rungs()->Add(info.rungs.begin(), info.rungs.end());
  return response;
}

}  // namespace selfsame::verifier
