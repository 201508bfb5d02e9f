#include "decoder/generate_call.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/logprobs.h"
#include "decoder/byte_buffer.h"
#include "decoder/convert.h"

namespace selfsame::decoder {
namespace {

// What the logprobs of the prompt take on the wire, at most.
int64_t PromptLogprobBytes(const GenerationRequest& request) {
  if (!request.prompt_logprobs) return 0;
  constexpr int64_t kBytesOfALogprob = 9;  // a float, and a token id of up to 5 bytes
  constexpr int64_t kBytesOfAPosition = 16;
  return static_cast<int64_t>(request.prompt_token_ids.size()) *
         (kBytesOfAPosition + kBytesOfALogprob * *request.prompt_logprobs);
}

}  // namespace

// One choice's way to the call.
class GenerateCall::ChoiceSink final : public GenerationSink {
 public:
  ChoiceSink(std::shared_ptr<GenerateCall> call, int32_t choice_index)
      : call_(std::move(call)), choice_index_(choice_index) {}

  void OnStarted(const StartedEvent& event) override { call_->OnStarted(event); }
  void OnPromptLogprobs(PromptLogprobsEvent event) override { call_->OnPromptLogprobs(event); }
  void OnChunk(ChunkEvent event) override { call_->OnChunk(choice_index_, event); }
  void OnRetract(const RetractEvent& event) override { call_->OnRetract(choice_index_, event); }
  void OnComplete(const CompleteEvent& event) override { call_->OnComplete(choice_index_, event); }
  void OnError(const absl::Status& status) override { call_->Fail(status); }

 private:
  const std::shared_ptr<GenerateCall> call_;
  const int32_t choice_index_;
};

GenerateCall::GenerateCall(Engine& engine) : engine_(engine), queue_(kMaxUnsentResponseBytes) {}

void GenerateCall::Start(absl::StatusOr<PreparedGeneration> generation) {
  if (!generation.ok()) {
    Fail(generation.status());
    return;
  }
  const GenerationRequest& request = generation->request;
  started_ = ToProto(request);
  echo_ = std::move(generation->echo);
  seed_ = request.seed;
  choice_count_ = generation->choice_count;
  // Each choice may wait for a slow client as far as one answer may; what the client asked to know
  // of its prompt comes all at once.
  int64_t more_bytes = (choice_count_ - 1) * kMaxUnsentResponseBytes + PromptLogprobBytes(request);
  for (const v1::GenerateResponse& piece : echo_) {
    more_bytes += static_cast<int64_t>(piece.ByteSizeLong());
  }
  {
    MutexLock lock(mutex_);
    queue_.RaiseLimit(more_bytes);
  }
  const auto group = choice_count_ > 1 ? std::make_shared<ChoiceGroup>() : nullptr;
  std::vector<Submission> submissions;
  for (int32_t i = 0; i < choice_count_; ++i) {
    Submission& submission = submissions.emplace_back();
    submission.request = request;
    submission.request.choice_index = i;
    submission.request.group = group;
    // They are the same for all.
    if (i > 0) submission.request.prompt_logprobs.reset();
    submission.sink = std::make_shared<ChoiceSink>(shared_from_this(), i);
  }
  auto ids = engine_.Submit(std::move(submissions));
  if (!ids.ok()) {
    Fail(ids.status());
    return;
  }
  bool is_unwanted = false;
  {
    MutexLock lock(mutex_);
    engine_ids_ = *std::move(ids);
    is_unwanted = is_unwanted_;
  }
  // The client may have gone while the prompt was tokenised.
  if (is_unwanted) CancelInEngine();
}

bool GenerateCall::HasEnded() {
  MutexLock lock(mutex_);
  return end_.has_value();
}

void GenerateCall::OnStarted(const StartedEvent& event) {
  if (has_started_) return;
  has_started_ = true;
  v1::GenerateResponse response;
  *response.mutable_started() = started_;
  response.mutable_started()->set_fingerprint(event.fingerprint);
  Send(std::move(response));
  for (v1::GenerateResponse& piece : echo_) Send(std::move(piece));
  echo_.clear();
  MutexLock lock(mutex_);
  queue_.Seal();
}

void GenerateCall::OnPromptLogprobs(const PromptLogprobsEvent& event) {
  std::span<const PromptLogprob> entries = event.entries;
  int32_t position = event.first_position;
  while (!entries.empty()) {
    const size_t count = std::min(entries.size(), size_t{kMaxPromptPieceTokens});
    v1::GenerateResponse response;
    *response.mutable_prompt_logprobs() = selfsame::ToProto(position, entries.first(count));
    Send(std::move(response));
    position += static_cast<int32_t>(count);
    entries = entries.subspan(count);
  }
}

void GenerateCall::OnChunk(int32_t choice_index, const ChunkEvent& event) {
  v1::GenerateResponse response;
  *response.mutable_chunk() = ToProto(event, choice_index);
  Send(std::move(response));
}

void GenerateCall::OnRetract(int32_t choice_index, const RetractEvent& event) {
  v1::GenerateResponse response;
  *response.mutable_retract() = ToProto(event, choice_index);
  Send(std::move(response));
}

void GenerateCall::OnComplete(int32_t choice_index, const CompleteEvent& event) {
  v1::GenerateResponse response;
  *response.mutable_complete() = ToProto(event, seed_, choice_index);
  Send(std::move(response));
  if (++completed_count_ == choice_count_) End(absl::OkStatus());
}

void GenerateCall::Fail(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!end_.has_value()) {
      end_ = status;
      if (choice_count_ > 1) CancelSoon();
    }
  }
  Advance();
}

void GenerateCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    is_writing_ = false;
    if (!ok) {
      // The client is gone; OnCancel tells the engine.
      queue_.Clear();
      if (!end_.has_value()) end_ = CancelledError("the client is gone");
    }
  }
  Advance();
}

void GenerateCall::OnCancel() {
  End(CancelledError("the client is gone"));
  CancelInEngine();
}

void GenerateCall::OnDone() {
  // The last reference may be this one.
  const std::shared_ptr<GenerateCall> self = std::move(self_);
}

void GenerateCall::Send(v1::GenerateResponse response) {
  {
    MutexLock lock(mutex_);
    if (end_.has_value()) return;
    if (!queue_.Push(std::move(response))) {
      end_ = ResourceExhaustedError(absl::StrCat("the client reads too slowly: more than ",
                                                 queue_.limit_bytes(), " bytes of its answer wait"),
                                    kSlowClientRetryMs);
      queue_.Clear();
      CancelSoon();
    }
  }
  Advance();
}

void GenerateCall::End(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!end_.has_value()) end_ = status;
  }
  Advance();
}

void GenerateCall::CancelSoon() {
  if (is_cancelling_) return;
  is_cancelling_ = true;
  cancelling_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [weak = weak_from_this()](bool) {
    if (const auto self = weak.lock()) self->CancelInEngine();
  });
}

void GenerateCall::CancelInEngine() {
  std::vector<uint64_t> ids;
  {
    MutexLock lock(mutex_);
    is_unwanted_ = true;
    ids = engine_ids_;
  }
  for (const uint64_t id : ids) engine_.Cancel(id);
}

void GenerateCall::Advance() {
  bool has_message = false;
  std::optional<grpc::Status> status;
  {
    MutexLock lock(mutex_);
    if (is_writing_ || is_finished_) return;
    if (!queue_.empty()) {
      outgoing_ = Serialize(queue_.Pop());
      has_message = true;
      is_writing_ = true;
    }
    if (queue_.empty() && end_.has_value()) {
      status = ToGrpcStatus(*end_);
      is_finished_ = true;
    }
  }
  if (has_message && status.has_value()) {
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), *std::move(status));
  } else if (has_message) {
    StartWrite(&outgoing_);
  } else if (status.has_value()) {
    Finish(*std::move(status));
  }
}

}  // namespace selfsame::decoder
