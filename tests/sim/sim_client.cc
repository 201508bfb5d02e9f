#include "tests/sim/sim_client.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_sequence.h"

namespace selfsame::sim {
namespace {

std::string TextOf(int32_t token_id) {
  return token_id == kEndToken ? "" : std::string(1, static_cast<char>(token_id - 3));
}

SimSequence SequenceOf(const decoder::GenerationRequest& request) {
  const SampleRow sampling = {.temperature = request.temperature,
                              .top_k = request.top_k,
                              .top_p = request.top_p,
                              .min_p = request.min_p,
                              .seed = request.seed,
                              .choice_index = request.choice_index,
                              .top_count = request.top_logprobs};
  return {sampling, request.logit_rules, request.prompt_token_ids, request.stop_token_ids};
}

// Where the text ends before a stop string that its last token completes and that does not begin
// before `searched_from`; npos: nowhere.
size_t StopStringStart(const std::string& text, size_t searched_from,
                       const std::vector<std::string>& stop_strings) {
  for (const std::string& stop : stop_strings) {
    if (searched_from + stop.size() > text.size()) continue;
    if (text.ends_with(stop)) return text.size() - stop.size();
  }
  return std::string::npos;
}

}  // namespace

CanonicalAnswer AnswerOf(const decoder::GenerationRequest& request, uint64_t weights) {
  SimSequence sequence = SequenceOf(request);
  CanonicalAnswer answer;
  size_t searched_from = 0;
  while (static_cast<int32_t>(answer.token_ids.size()) < request.max_tokens) {
    const SampledToken token = sequence.Next(weights);
    sequence.Append(token.token_id);
    answer.token_ids.push_back(token.token_id);
    answer.logprobs.push_back(token.logprob);
    answer.top_logprobs.push_back(token.top);
    answer.text += TextOf(token.token_id);
    if (static_cast<int32_t>(answer.token_ids.size()) <= request.logit_rules.min_tokens) {
      searched_from = answer.text.size();
    }
    const size_t stop = StopStringStart(answer.text, searched_from, request.stop_strings);
    if (stop != std::string::npos) {
      answer.text.resize(stop);
      break;
    }
    const auto& stops = request.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), token.token_id) != stops.end()) break;
  }
  return answer;
}

std::string TextToShow(const decoder::GenerationRequest& request,
                       const std::vector<int32_t>& token_ids) {
  std::string text;
  size_t searched_from = 0;
  for (size_t i = 0; i < token_ids.size(); ++i) {
    const int32_t token_id = token_ids[i];
    text += TextOf(token_id);
    if (static_cast<int32_t>(i) < request.logit_rules.min_tokens) searched_from = text.size();
    const size_t stop = StopStringStart(text, searched_from, request.stop_strings);
    if (stop != std::string::npos) return text.substr(0, stop);
    const auto& stops = request.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), token_id) != stops.end()) return text;
  }
  if (static_cast<int32_t>(token_ids.size()) == request.max_tokens) return text;
  size_t held_back = 0;
  for (const std::string& stop : request.stop_strings) {
    for (size_t size = 1; size < stop.size() && searched_from + size <= text.size(); ++size) {
      if (text.ends_with(stop.substr(0, size))) held_back = std::max(held_back, size);
    }
  }
  return text.substr(0, text.size() - held_back);
}

SimClient::SimClient(World& world, SimDecoder& decoder, uint64_t id,
                     decoder::GenerationRequest request)
    : world_(world),
      decoder_(decoder),
      id_(id),
      request_(std::move(request)),
      token_ids_(request_.resume_token_ids),
      text_(TextToShow(request_, token_ids_)) {}

void SimClient::Submit(std::shared_ptr<SimClient> self) {
  world_.Trace("submit", {static_cast<int64_t>(id_), request_.is_deterministic,
                          static_cast<int64_t>(request_.prompt_token_ids.size()),
                          request_.max_tokens, static_cast<int64_t>(request_.seed),
                          request_.expected_fingerprint.has_value(), request_.stream_candidates,
                          static_cast<int64_t>(request_.resume_token_ids.size())});
  if (!request_.is_deterministic) ++decoder_.ordinary_count;
  decoder_.Submit(id_, request_, std::move(self));
}

void SimClient::SetDeadline(SteadyTime deadline) {
  request_.deadline = deadline;
  allowed.deadline = true;
}

void SimClient::Cancel() {
  if (has_ended_) return;
  world_.Trace("cancel", {static_cast<int64_t>(id_)});
  allowed.cancelled = true;
  decoder_.Post([id = id_](decoder::EngineCore& core) { core.Cancel(id); });
}

void SimClient::OnStarted(const decoder::StartedEvent& event) {
  if (has_started_ || has_ended_) Fail("started twice");
  has_started_ = true;
  if (!request_.is_deterministic) return;
  if (event.fingerprint.size() < 2) {
    Fail("no fingerprint");
    return;
  }
  fingerprint_ = event.fingerprint;
  weights_ = static_cast<uint64_t>(std::stoi(event.fingerprint.substr(1)));
  expected_ = AnswerOf(request_, weights_);
}

void SimClient::OnPromptLogprobs(decoder::PromptLogprobsEvent event) {
  if (!has_started_ || has_ended_ || has_chunk_) Fail("prompt logprobs out of turn");
  const auto first = static_cast<size_t>(event.first_position) - 1;
  if (first != prompt_logprobs_.size()) Fail("a gap in the prompt logprobs");
  prompt_logprobs_.insert(prompt_logprobs_.end(), event.entries.begin(), event.entries.end());
  world_.Trace("prompt logprobs", {static_cast<int64_t>(id_), event.first_position,
                                   static_cast<int64_t>(event.entries.size())});
}

// Called with the first chunk: by then all of them must be there.
void SimClient::CheckPromptLogprobs() {
  const size_t count = request_.prompt_logprobs ? request_.prompt_token_ids.size() - 1 : 0;
  if (prompt_logprobs_.size() != count) {
    Fail(absl::StrCat(prompt_logprobs_.size(), " prompt logprobs instead of ", count));
    return;
  }
  Prefix prefix;
  for (size_t i = 0; i < count; ++i) {
    prefix.Append(request_.prompt_token_ids[i]);
    const SampleRow row{.given_token = request_.prompt_token_ids[i + 1],
                        .top_count = *request_.prompt_logprobs};
    const SampledToken expected = prefix.Next(row, weights_);
    if (prompt_logprobs_[i] != PromptLogprob{expected.logprob, expected.top}) {
      Fail(absl::StrCat("the logprob of prompt token ", i + 1, " is not the one of its prefix"));
      return;
    }
  }
}

void SimClient::OnChunk(decoder::ChunkEvent event) {
  if (!has_started_ || has_ended_) Fail("a chunk out of turn");
  if (event.token_ids.empty()) Fail("an empty chunk");
  if (event.is_candidate) {
    AddCandidate(event);
    return;
  }
  CommitCandidates(event);
  if (!has_chunk_) CheckPromptLogprobs();
  has_chunk_ = true;
  const size_t first = token_ids_.size();
  if (event.first_position != static_cast<int32_t>(request_.prompt_token_ids.size() + first)) {
    Fail("a chunk's position");
  }
  token_ids_.insert(token_ids_.end(), event.token_ids.begin(), event.token_ids.end());
  text_ += event.text;
  world_.Trace("chunk", {static_cast<int64_t>(id_), event.first_position,
                         static_cast<int64_t>(event.token_ids.size())});
  if (request_.is_deterministic) {
    CheckDeterministic(first, event);
  } else {
    CheckOrdinary(first);
  }
  CheckShown();
}

void SimClient::AddCandidate(const decoder::ChunkEvent& event) {
  if (!request_.stream_candidates) Fail("a candidate nobody asked for");
  const auto position = static_cast<int32_t>(request_.prompt_token_ids.size() + token_ids_.size() +
                                             candidates_.size());
  if (event.first_position != position) Fail("a candidate's position");
  if (event.token_ids.size() != 1 || !event.logprobs.empty()) Fail("not one bare candidate");
  const std::vector<Proposal>& proposals = decoder_.proposals().at(request_.seed);
  if (proposals[static_cast<size_t>(position)].token_id != event.token_ids[0]) {
    Fail("a candidate the fast path did not propose");
  }
  candidates_.push_back({event.token_ids[0], event.text});
  ++candidate_count_;
  world_.Trace("candidate", {static_cast<int64_t>(id_), position, event.token_ids[0]});
  CheckShown();
}

void SimClient::CommitCandidates(const decoder::ChunkEvent& event) {
  for (const int32_t token_id : event.token_ids) {
    if (candidates_.empty()) return;
    if (candidates_.front().token_id != token_id) Fail("a candidate changed without a retract");
    candidates_.pop_front();
  }
}

void SimClient::OnRetract(const decoder::RetractEvent& event) {
  world_.Trace("retract", {static_cast<int64_t>(id_), event.length});
  if (!has_started_ || has_ended_) Fail("a retract out of turn");
  const auto committed = static_cast<int32_t>(request_.prompt_token_ids.size() + token_ids_.size());
  if (event.length < committed ||
      event.length >= committed + static_cast<int32_t>(candidates_.size())) {
    Fail(absl::StrCat("a retract to ", event.length));
    return;
  }
  candidates_.resize(static_cast<size_t>(event.length - committed));
  ++retract_count_;
  CheckShown();
}

void SimClient::CheckShown() {
  std::vector<int32_t> token_ids = token_ids_;
  std::string text = text_;
  for (const Candidate& candidate : candidates_) {
    token_ids.push_back(candidate.token_id);
    text += candidate.text;
  }
  if (text != TextToShow(request_, token_ids)) Fail("the text shown is not that of the tokens");
}

void SimClient::CheckDeterministic(size_t first, const decoder::ChunkEvent& event) {
  for (size_t i = first; i < token_ids_.size(); ++i) {
    if (i >= expected_.token_ids.size() || token_ids_[i] != expected_.token_ids[i]) {
      Fail(absl::StrCat("output token ", i, " is not the canonical one"));
      return;
    }
    if (event.top_logprobs.size() != (request_.top_logprobs > 0 ? event.token_ids.size() : 0) ||
        (request_.top_logprobs > 0 && event.top_logprobs[i - first] != expected_.top_logprobs[i])) {
      Fail(absl::StrCat("the top logprobs of output token ", i, " are not the canonical ones"));
      return;
    }
    if (!request_.logprobs) continue;
    if (event.logprobs.size() != event.token_ids.size() ||
        std::bit_cast<uint32_t>(event.logprobs[i - first]) !=
            std::bit_cast<uint32_t>(expected_.logprobs[i])) {
      Fail(absl::StrCat("the logprob of output token ", i, " is not the canonical one"));
      return;
    }
  }
}

void SimClient::CheckOrdinary(size_t first) {
  const std::vector<Proposal>& proposals = decoder_.proposals().at(request_.seed);
  SimSequence sequence = SequenceOf(request_);
  for (size_t i = 0; i < token_ids_.size(); ++i) {
    if (i >= first) {
      const Proposal& proposal = proposals[static_cast<size_t>(sequence.length())];
      if (proposal.token_id != token_ids_[i]) Fail("a token the fast path did not propose");
      if (proposal.canonical != sequence.Next(/*weights=*/0).token_id) {
        Fail("a token made from KV of another prefix");
      }
    }
    sequence.Append(token_ids_[i]);
  }
}

// Never the row of the last known token.
void SimClient::CheckCached(int32_t token_count) {
  const auto prompt_length = static_cast<int32_t>(request_.prompt_token_ids.size());
  const bool is_whole_prompt = token_count == prompt_length && !request_.resume_token_ids.empty();
  const bool is_part = token_count >= 0 && token_count < prompt_length;
  if (!is_whole_prompt && !is_part) {
    Fail(absl::StrCat(token_count, " cached tokens"));
  }
}

void SimClient::OnComplete(const decoder::CompleteEvent& event) {
  if (!has_started_ || has_ended_) Fail("complete out of turn");
  if (event.output_tokens != static_cast<int32_t>(token_ids_.size())) Fail("the token count");
  if (!candidates_.empty()) Fail("candidates are left at the end");
  if (request_.is_deterministic) {
    if (token_ids_.size() != expected_.token_ids.size()) Fail("the answer is cut short");
    if (text_ != expected_.text) Fail("the text is not that of the answer");
    const bool errs = request_.seed % kMismatchKinds != 0 || event.fingerprint != "F0";
    if (!errs && event.rollbacks > 0) Fail("rollbacks of an answer without a mismatch");
  } else if (event.windows > 0) {
    Fail("windows of an ordinary request");
  }
  CheckCached(event.cached_prompt_tokens);
  CheckCached(event.verifier_cached_prompt_tokens);
  complete_ = event;
  has_completed_ = true;
  world_.Trace("complete", {static_cast<int64_t>(id_), event.output_tokens, event.rollbacks,
                            event.rolled_back_tokens});
  End();
}

bool SimClient::IsAllowed(const absl::Status& status) const {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return allowed.cancelled;
    case absl::StatusCode::kUnavailable:
      return allowed.unavailable || decoder_.restart_count() > 0;
    case absl::StatusCode::kDeadlineExceeded:
      return allowed.deadline && world_.Now() >= *request_.deadline;
    case absl::StatusCode::kResourceExhausted:
      return allowed.resource_exhausted;
    case absl::StatusCode::kFailedPrecondition:
      return allowed.failed_precondition;
    case absl::StatusCode::kInternal:
      return allowed.internal;
    default:
      return false;
  }
}

void SimClient::OnError(const absl::Status& status) {
  world_.Trace("error", {static_cast<int64_t>(id_), static_cast<int64_t>(status.code())});
  if (has_ended_) Fail("a second end");
  if (!IsAllowed(status)) Fail(absl::StrCat("failed for no reason: ", status.ToString()));
  End();
  if (absl::IsUnavailable(status) && has_started_ && on_broken) on_broken(*this);
}

decoder::GenerationRequest SimClient::Continuation() const {
  decoder::GenerationRequest request = request_;
  request.resume_token_ids = token_ids_;
  if (request.is_deterministic) request.expected_fingerprint = fingerprint_;
  return request;
}

void SimClient::End() {
  has_ended_ = true;
  if (!request_.is_deterministic) --decoder_.ordinary_count;
}

void SimClient::Fail(const std::string& what) {
  world_.Fail(
      absl::StrCat("request ", id_, request_.is_deterministic ? "" : " (ordinary)", ": ", what));
}

}  // namespace selfsame::sim
