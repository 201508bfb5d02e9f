#include "decoder/client/answer_builder.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/logprobs.h"

namespace selfsame::client {
namespace {

absl::Status CheckCount(const char* name, int count, int expected) {
  if (count == expected) return absl::OkStatus();
  return InternalError(
      absl::StrCat("the server sent ", count, " ", name, " instead of ", expected));
}

}  // namespace

AnswerBuilder::AnswerBuilder(const Request& request, const TextCallback& on_text)
    : request_(request),
      on_text_(on_text),
      choices_(static_cast<size_t>(std::clamp(request.n, 1, kMaxChoices))),
      is_complete_(choices_.size()) {
  for (Answer& choice : choices_) choice.sent = std::chrono::steady_clock::now();
}

absl::Status AnswerBuilder::Add(const v1::GenerateResponse& response) {
  switch (response.event_case()) {
    case v1::GenerateResponse::kStarted:
      return AddStarted(response.started());
    case v1::GenerateResponse::kChunk:
      return AddChunk(response.chunk());
    case v1::GenerateResponse::kComplete:
      return AddComplete(response.complete());
    case v1::GenerateResponse::kPromptLogprobs:
      return AddPromptLogprobs(response.prompt_logprobs());
    case v1::GenerateResponse::kRetract:
      return InternalError("the server sent a Retract, though no candidates were asked for");
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;
  }
  return InternalError("the server sent an event this client does not know");
}

void AnswerBuilder::Restart() {
  for (Answer& choice : choices_) {
    SELFSAME_CHECK(choice.token_ids.empty());
    Answer empty;
    empty.sent = choice.sent;
    choice = std::move(empty);
  }
  started_ = false;
  is_complete_.assign(choices_.size(), false);
}

bool AnswerBuilder::is_complete() const {
  return std::find(is_complete_.begin(), is_complete_.end(), false) == is_complete_.end();
}

absl::StatusOr<Answer> AnswerBuilder::Finish() {
  if (!is_complete()) {
    return InternalError("the server ended the stream without a Complete event");
  }
  Answer& first = choices_.front();
  const auto prompt_tokens = static_cast<size_t>(first.prompt_tokens);
  if (request_.echo && first.prompt_token_ids.size() != prompt_tokens) {
    return InternalError("the server did not send the whole prompt");
  }
  if (request_.prompt_logprobs && first.prompt_logprobs.size() + 1 != prompt_tokens) {
    return InternalError("the server did not send the logprobs of the whole prompt");
  }
  first.other_choices.assign(std::make_move_iterator(choices_.begin() + 1),
                             std::make_move_iterator(choices_.end()));
  return std::move(first);
}

absl::Status AnswerBuilder::AddStarted(const v1::Started& started) {
  if (started_) return InternalError("the server sent Started twice");
  started_ = true;
  for (Answer& choice : choices_) {
    choice.request_id = started.request_id();
    choice.temperature = started.params().temperature();
    choice.top_k = started.params().top_k();
    choice.top_p = started.params().top_p();
    choice.min_p = started.params().min_p();
    choice.repetition_penalty = started.params().repetition_penalty();
    choice.presence_penalty = started.params().presence_penalty();
    choice.frequency_penalty = started.params().frequency_penalty();
    choice.min_tokens = started.params().min_tokens();
    choice.seed = started.params().seed();
    choice.max_tokens = started.params().max_tokens();
    choice.prompt_tokens = started.prompt_tokens();
    choice.fingerprint = started.fingerprint();
    choice.first_token = choice.last_token = choice.sent;
  }
  return absl::OkStatus();
}

Answer* AnswerBuilder::Find(int32_t choice_index) {
  const auto index = static_cast<size_t>(choice_index);
  if (!started_ || index >= choices_.size() || is_complete_[index]) return nullptr;
  return &choices_[index];
}

absl::Status AnswerBuilder::AddPromptLogprobs(const v1::PromptLogprobs& piece) {
  Answer* const choice = Find(0);
  if (choice == nullptr || !request_.prompt_logprobs) {
    return InternalError("the server sent PromptLogprobs out of turn");
  }
  ASSIGN_OR_RETURN(const auto entries, FromProto(piece));
  if (piece.first_position() != static_cast<int64_t>(choice->prompt_logprobs.size()) + 1) {
    return InternalError("the server left a gap in the logprobs of the prompt");
  }
  choice->prompt_logprobs.insert(choice->prompt_logprobs.end(), entries.begin(), entries.end());
  return absl::OkStatus();
}

absl::Status AnswerBuilder::AddEcho(const v1::Chunk& chunk, Answer& choice) {
  if (chunk.first_position() != static_cast<int64_t>(choice.prompt_token_ids.size()) ||
      chunk.first_position() + chunk.token_ids_size() > choice.prompt_tokens) {
    return InternalError("the server sent the prompt with a gap, or tokens behind it");
  }
  choice.prompt_token_ids.insert(choice.prompt_token_ids.end(), chunk.token_ids().begin(),
                                 chunk.token_ids().end());
  choice.prompt_text += chunk.text();
  const std::string_view text = choice.prompt_text;
  const std::string_view reported = reported_prompt_;
  if (!text.starts_with(reported.substr(0, text.size()))) {
    return InternalError("the server sent another prompt than before the stream broke");
  }
  if (text.size() <= reported.size()) return absl::OkStatus();
  const std::string_view added = text.substr(reported.size());
  reported_prompt_.append(added);
  if (on_text_) on_text_(added);
  return absl::OkStatus();
}

absl::Status AnswerBuilder::AddChunk(const v1::Chunk& chunk) {
  Answer* const found = Find(chunk.choice_index());
  if (found == nullptr) return InternalError("the server sent a Chunk out of turn");
  if (chunk.is_candidate()) {
    return InternalError("the server sent a candidate, though none were asked for");
  }
  Answer& choice = *found;
  if (request_.echo && chunk.choice_index() == 0 && chunk.first_position() < choice.prompt_tokens) {
    return AddEcho(chunk, choice);
  }
  const int64_t expected_position =
      choice.prompt_tokens + static_cast<int64_t>(choice.token_ids.size());
  if (chunk.token_ids_size() > 0 && chunk.first_position() != expected_position) {
    return InternalError(absl::StrCat("the server sent a chunk at position ",
                                      chunk.first_position(), " instead of ", expected_position));
  }
  const int count = chunk.token_ids_size();
  RETURN_IF_ERROR(CheckCount("logprobs", chunk.logprobs_size(), request_.logprobs ? count : 0));
  RETURN_IF_ERROR(
      CheckCount("top_logprobs", chunk.top_logprobs_size(), request_.top_logprobs > 0 ? count : 0));
  if (chunk.token_ids_size() > 0) {
    choice.last_token = std::chrono::steady_clock::now();
    if (choice.token_ids.empty()) choice.first_token = choice.last_token;
  }
  choice.token_ids.insert(choice.token_ids.end(), chunk.token_ids().begin(),
                          chunk.token_ids().end());
  choice.logprobs.insert(choice.logprobs.end(), chunk.logprobs().begin(), chunk.logprobs().end());
  for (const v1::TopLogprobs& top : chunk.top_logprobs()) {
    ASSIGN_OR_RETURN(choice.top_logprobs.emplace_back(), FromProto(top));
  }
  choice.text += chunk.text();
  if (on_text_ && chunk.choice_index() == 0 && !chunk.text().empty()) on_text_(chunk.text());
  return absl::OkStatus();
}

absl::Status AnswerBuilder::AddComplete(const v1::Complete& complete) {
  Answer* const found = Find(complete.choice_index());
  if (found == nullptr) return InternalError("the server sent Complete out of turn");
  Answer& choice = *found;
  is_complete_[static_cast<size_t>(complete.choice_index())] = true;
  if (static_cast<size_t>(complete.output_tokens()) != choice.token_ids.size()) {
    return InternalError(absl::StrCat("the server counted ", complete.output_tokens(),
                                      " output tokens but sent ", choice.token_ids.size()));
  }
  if (complete.fingerprint() != choice.fingerprint) {
    return InternalError("the fingerprint changed between the first and the last event");
  }
  choice.finish_reason = complete.finish_reason() == v1::FINISH_REASON_STOP ? FinishReason::kStop
                                                                            : FinishReason::kLength;
  if (complete.matched_stop_case() == v1::Complete::kStopString) {
    choice.stop_string = complete.stop_string();
  } else if (complete.matched_stop_case() == v1::Complete::kStopTokenId) {
    choice.stop_token_id = complete.stop_token_id();
  }
  choice.windows = complete.windows();
  choice.rollbacks = complete.rollbacks();
  choice.rolled_back_tokens = complete.rolled_back_tokens();
  choice.redecoded_tokens = complete.redecoded_tokens();
  choice.cached_prompt_tokens = complete.cached_prompt_tokens();
  choice.verifier_cached_prompt_tokens = complete.verifier_cached_prompt_tokens();
  return absl::OkStatus();
}

}  // namespace selfsame::client
