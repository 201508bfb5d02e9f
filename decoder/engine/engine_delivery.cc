// From the model's tokens and the verifier's verdicts to what a request's sink is told: the second
// half of EngineCore.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "decoder/engine/engine_core.h"

namespace selfsame::decoder {

void EngineCore::Start(Request& request, std::string fingerprint) {
  request.has_started = true;
  ++dequeued_;
  observer_.OnStarted(request.params.is_deterministic, clock_.Now() - request.arrived_at);
  request.sink->OnStarted({std::move(fingerprint)});
  // Where nothing is verified, tokens stand at once.
  if (request.params.stream_candidates && request.verification) ShowCandidates(request);
}

void EngineCore::ShowCandidates(Request& request) {
  const Speculation& speculation = request.verification->speculation;
  OutputStream output = request.output;
  for (int32_t position = speculation.committed_length(); position < speculation.length();
       ++position) {
    const int32_t token_id = request.TokenAt(position);
    ShowCandidate(request, position, token_id, output.Push(token_id));
  }
}

void EngineCore::ShowCandidate(Request& request, int32_t position, int32_t token_id,
                               std::string text) {
  request.sink->OnChunk({.first_position = position,
                         .token_ids = {token_id},
                         .logprobs = {},
                         .text = std::move(text),
                         .is_candidate = true});
}

void EngineCore::TakeToken(Request& request, const SampledToken& token) {
  if (request.verification) {
    ProposeToken(request, token);
    return;
  }
  const int32_t position = request.length();
  request.ordinary_output.push_back(token.token_id);
  Stand(request, position, {&token.token_id, 1}, {&token.logprob, 1}, {&token.top, 1});
}

void EngineCore::TakePromptLogprobs(Request& request, std::span<const SampledToken> given) {
  std::vector<PromptLogprob> entries;
  entries.reserve(given.size());
  for (const SampledToken& token : given) entries.push_back({token.logprob, token.top});
  DeliverPromptLogprobs(request, std::move(entries));
}

void EngineCore::DeliverPromptLogprobs(Request& request, std::vector<PromptLogprob> entries) {
  const int32_t first_position = 1 + request.prompt_logprob_count;
  request.prompt_logprob_count += static_cast<int32_t>(entries.size());
  request.sink->OnPromptLogprobs({first_position, std::move(entries)});
}

bool EngineCore::IsInDoubt(const Verification& verification, const SampledToken& token) const {
  return verification.wants_margins && token.top.size() >= 2 &&
         token.top[0].token_id == token.token_id &&
         token.top[0].logprob - token.top[1].logprob < options_.doubt_margin;
}

void EngineCore::ProposeToken(Request& request, const SampledToken& token) {
  Verification& verification = *request.verification;
  const int32_t token_id = token.token_id;
  const int32_t position = request.length();
  bool is_end = false;
  std::string text;
  if (verification.lookahead && !verification.lookahead->end()) {
    text = verification.lookahead->Push(token_id);
    is_end = verification.lookahead->end().has_value();
  }
  Speculation& speculation = verification.speculation;
  const int32_t redecoded = speculation.counters().redecoded_tokens;
  speculation.AppendCandidate(token_id, is_end);
  if (speculation.counters().redecoded_tokens > redecoded) observer_.OnRedecoded();
  if (speculation.unsubmitted_count() == 1) {
    verification.oldest_unsubmitted = clock_.Now();
    verification.has_doubt = false;
  }
  if (IsInDoubt(verification, token)) verification.has_doubt = true;
  if (request.params.stream_candidates && request.has_started) {
    ShowCandidate(request, position, token_id, std::move(text));
  }
}

void EngineCore::Stand(Request& request, int32_t first_position, std::span<const int32_t> token_ids,
                       std::span<const float> logprobs, std::span<const TopLogprobs> top_logprobs) {
  ChunkEvent chunk;
  chunk.first_position = first_position;
  for (size_t i = 0; i < token_ids.size() && !request.output.end(); ++i) {
    chunk.text += request.output.Push(token_ids[i]);
    chunk.token_ids.push_back(token_ids[i]);
    if (request.params.logprobs) chunk.logprobs.push_back(logprobs[i]);
    if (request.params.top_logprobs > 0) chunk.top_logprobs.push_back(top_logprobs[i]);
  }
  const SteadyTime now = clock_.Now();
  const bool is_first = first_position == request.stream_start();
  observer_.OnTokens({.is_deterministic = request.params.is_deterministic,
                      .token_count = static_cast<int32_t>(chunk.token_ids.size()),
                      .is_first = is_first,
                      .since = now - (is_first ? request.arrived_at : request.last_token_at),
                      .prompt_length = request.prompt_length()});
  request.last_token_at = now;
  request.sink->OnChunk(std::move(chunk));
  if (request.output.end()) {
    Finish(request);
    return;
  }
  if (!request.verification) return;
  Verification& verification = *request.verification;
  SELFSAME_CHECK(!verification.speculation.has_ended());
  if (verification.lookahead && verification.speculation.candidate_count() == 0) {
    verification.lookahead = request.output;
  }
}

void EngineCore::Finish(Request& request) {
  const OutputEnd& end = *request.output.end();
  CompleteEvent event;
  event.reason = end.reason;
  event.stop_string = end.stop_string;
  event.stop_token_id = end.stop_token_id;
  event.prompt_tokens = request.prompt_length();
  event.output_tokens = request.output.token_count();
  event.cached_prompt_tokens = request.cached_prompt_tokens;
  if (request.verification) {
    const SpeculationCounters& counters = request.verification->speculation.counters();
    event.windows = counters.windows;
    event.rollbacks = counters.rollbacks;
    event.rolled_back_tokens = counters.rolled_back_tokens;
    event.redecoded_tokens = counters.redecoded_tokens;
    event.verifier_cached_prompt_tokens = request.verification->cached_prompt_tokens.value_or(0);
    event.fingerprint = request.verification->fingerprint;
  } else {
    event.fingerprint = OwnFingerprint(request);
  }
  observer_.OnEnd({.is_deterministic = request.params.is_deterministic,
                   .code = absl::StatusCode::kOk,
                   .reason = event.reason,
                   .age = clock_.Now() - request.arrived_at});
  const std::shared_ptr<GenerationSink> sink = request.sink;
  Release(request);
  sink->OnComplete(event);
}

void EngineCore::Fail(Request& request, const absl::Status& status) {
  observer_.OnEnd({.is_deterministic = request.params.is_deterministic,
                   .code = status.code(),
                   .age = clock_.Now() - request.arrived_at});
  const std::shared_ptr<GenerationSink> sink = request.sink;
  Release(request);
  sink->OnError(status);
}

}  // namespace selfsame::decoder
