#include "decoder/client/answer_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace selfsame::client {

AnswerStream::AnswerStream(v1::GenerateRequest request, TextCallback on_candidates)
    : message_(std::move(request)), on_candidates_(std::move(on_candidates)) {}

absl::Status AnswerStream::Take(v1::GenerateResponse response, Collect collect) {
  ASSIGN_OR_RETURN(const bool is_collected, Follow(response));
  if (is_collected) RETURN_IF_ERROR(collect(response));
  if (response.has_chunk() || response.has_retract()) ReportCandidates();
  return absl::OkStatus();
}

absl::StatusOr<bool> AnswerStream::Follow(v1::GenerateResponse& response) {
  if (phase_ == Phase::kComplete) return InternalError("the server sent an event after Complete");
  if (response.has_started() != (phase_ == Phase::kBegin)) {
    return InternalError(response.has_started() ? "the server sent Started twice"
                                                : "the server sent an event before Started");
  }
  switch (response.event_case()) {
    case v1::GenerateResponse::kStarted:
      return TakeStarted(response.started());
    case v1::GenerateResponse::kChunk:
      return TakeChunk(*response.mutable_chunk());
    case v1::GenerateResponse::kRetract:
      if (!message_.stream_candidates()) return true;
      RETURN_IF_ERROR(TakeRetract(response.retract()));
      return false;
    case v1::GenerateResponse::kComplete:
      if (!candidates_.empty() || !repeated_ids_.empty()) {
        return InternalError("the server completed the answer before all it had sent stood");
      }
      phase_ = Phase::kComplete;
      return true;
    default:
      return true;
  }
}

absl::StatusOr<bool> AnswerStream::TakeStarted(const v1::Started& started) {
  if (!is_resumed_) {
    started_ = started;
    prompt_tokens_ = started.prompt_tokens();
    phase_ = Phase::kStarted;
    return true;
  }
  if (started.prompt_tokens() != prompt_tokens_ ||
      started.params().seed() != started_.params().seed() ||
      started.fingerprint() != started_.fingerprint()) {
    return InternalError("the server goes on with another answer");
  }
  phase_ = Phase::kStarted;
  return false;
}

absl::StatusOr<bool> AnswerStream::TakeChunk(v1::Chunk& chunk) {
  if (chunk.is_candidate()) {
    if (!message_.stream_candidates()) return true;
    RETURN_IF_ERROR(TakeCandidate(chunk));
    return false;
  }
  const int32_t count = chunk.token_ids_size();
  // What has no output tokens, or stands before them, is the prompt.
  if (count == 0 || chunk.first_position() < prompt_tokens_) return true;
  if (chunk.first_position() != committed_length()) {
    return InternalError(absl::StrCat("the server sent a chunk at position ",
                                      chunk.first_position(), " instead of ", committed_length()));
  }
  for (const int32_t token_id : chunk.token_ids()) {
    token_ids_.push_back(token_id);
    if (candidates_.empty()) continue;
    if (candidates_.front().token_id != token_id) {
      return InternalError("the server committed another token than the candidate it showed");
    }
    candidates_.pop_front();
  }
  last_count_ = count;
  last_text_ = chunk.text();
  RETURN_IF_ERROR(Shorten(chunk));
  return chunk.token_ids_size() > 0 || !chunk.text().empty();
}

absl::Status AnswerStream::Shorten(v1::Chunk& chunk) {
  const auto count = std::min(chunk.token_ids_size(), static_cast<int>(repeated_ids_.size()));
  if (!std::equal(repeated_ids_.begin(), repeated_ids_.begin() + count,
                  chunk.token_ids().begin())) {
    return InternalError("the server goes on with another answer");
  }
  repeated_ids_.erase(repeated_ids_.begin(), repeated_ids_.begin() + count);
  chunk.set_first_position(chunk.first_position() + count);
  chunk.mutable_token_ids()->erase(chunk.token_ids().begin(), chunk.token_ids().begin() + count);
  if (chunk.logprobs_size() >= count) {
    chunk.mutable_logprobs()->erase(chunk.logprobs().begin(), chunk.logprobs().begin() + count);
  }
  if (chunk.top_logprobs_size() >= count) {
    chunk.mutable_top_logprobs()->DeleteSubrange(0, count);
  }
  const size_t size_bytes = std::min(repeated_text_.size(), chunk.text().size());
  if (chunk.text().compare(0, size_bytes, repeated_text_, 0, size_bytes) != 0) {
    return InternalError("the server goes on with another text");
  }
  repeated_text_.erase(0, size_bytes);
  chunk.mutable_text()->erase(0, size_bytes);
  return absl::OkStatus();
}

absl::Status AnswerStream::TakeCandidate(const v1::Chunk& chunk) {
  if (chunk.choice_index() != 0) return InternalError("the server sent a candidate out of turn");
  const int64_t expected = committed_length() + static_cast<int64_t>(candidates_.size());
  if (chunk.token_ids_size() != 1 || chunk.first_position() != expected) {
    return InternalError(absl::StrCat("the server sent ", chunk.token_ids_size(),
                                      " candidates at position ", chunk.first_position(),
                                      " instead of one at ", expected));
  }
  candidates_.push_back({chunk.token_ids(0), chunk.text()});
  ++candidate_count_;
  return absl::OkStatus();
}

absl::Status AnswerStream::TakeRetract(const v1::Retract& retract) {
  if (retract.choice_index() != 0) return InternalError("the server sent a Retract out of turn");
  const int64_t kept = retract.length() - committed_length();
  if (kept < 0 || kept > static_cast<int64_t>(candidates_.size())) {
    return InternalError(absl::StrCat("the server retracted to length ", retract.length(), " with ",
                                      committed_length(), " committed tokens and ",
                                      candidates_.size(), " candidates"));
  }
  candidates_.erase(candidates_.begin() + kept, candidates_.end());
  ++retract_count_;
  return absl::OkStatus();
}

void AnswerStream::ReportCandidates() const {
  if (!on_candidates_ || !message_.stream_candidates()) return;
  std::string text;
  for (const Candidate& candidate : candidates_) text += candidate.text;
  on_candidates_(std::string_view(text).substr(std::min(text.size(), repeated_text_.size())));
}

void AnswerStream::DropCandidates() {
  candidates_.clear();
  ReportCandidates();
}

void AnswerStream::Resume() {
  DropCandidates();
  phase_ = Phase::kBegin;
  if (!has_output()) return;
  if (message_.is_deterministic()) {
    const auto last = token_ids_.end() - last_count_;
    repeated_ids_.insert(repeated_ids_.begin(), last, token_ids_.end());
    repeated_text_.insert(0, last_text_);
    token_ids_.erase(last, token_ids_.end());
    message_.set_expected_fingerprint(started_.fingerprint());
  }
  last_count_ = 0;
  last_text_.clear();
  is_resumed_ = true;
  // The prompt came before the first token.
  message_.clear_echo();
  message_.clear_prompt_logprobs();
  message_.mutable_resume_token_ids()->Assign(token_ids_.begin(), token_ids_.end());
  message_.mutable_sampling()->set_seed(started_.params().seed());
  message_.mutable_stop()->set_max_tokens(started_.params().max_tokens());
}

}  // namespace selfsame::client
