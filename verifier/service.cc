#include "verifier/service.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "common/limits.h"
#include "common/mutex.h"
#include "common/rpc/grpc_status.h"
#include "verifier/convert.h"

namespace selfsame::verifier {
namespace {

// One Verify call. gRPC's threads read from it and the engine's thread answers through StreamSink.
//
// Reading stops while the stream's share of the engine's inbox or the queue of unsent answers is
// full, so a decoder that does not read its verdicts cannot make the queue grow: each message read
// leads to few answers, and those of a session's windows are bounded too.
//
// The call keeps itself alive until gRPC is done with it; the engine's reference may outlast that,
// and then finds the call over.
class VerifyCall final : public grpc::ServerBidiReactor<v1::VerifyRequest, v1::VerifyResponse>,
                         public StreamSink {
 public:
  explicit VerifyCall(Engine& engine) : engine_(engine) {}

  void Start(std::shared_ptr<VerifyCall> self) {
    auto id = engine_.OpenStream(self);
    MutexLock lock(mutex_);
    self_ = std::move(self);
    may_read_ = true;
    if (id.ok()) {
      stream_id_ = *id;
    } else {
      End(id.status());
    }
    Advance();
  }

  void OnReadDone(bool ok) override {
    uint64_t stream_id = 0;
    absl::StatusOr<StreamMessage> message = SessionClosing{};
    if (ok) message = FromProto(request_);
    {
      MutexLock lock(mutex_);
      is_reading_ = false;
      may_read_ = false;
      stream_id = stream_id_;
      if (!message.ok()) End(message.status());
      // The decoder has closed its side or is gone: its sessions end with the stream.
      if (!ok) Abandon();
    }
    const bool has_room = ok && message.ok() && engine_.Post(stream_id, *std::move(message));
    MutexLock lock(mutex_);
    // Where Post found no room, OnInboxRoom may have come already: it is left as it says.
    may_read_ = may_read_ || has_room;
    Advance();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    is_writing_ = false;
    if (!ok) Abandon();
    Advance();
  }

  void OnCancel() override {
    MutexLock lock(mutex_);
    Abandon();
    Advance();
  }

  void OnDone() override {
    std::shared_ptr<VerifyCall> self;  // released after the lock
    MutexLock lock(mutex_);
    engine_.CloseStream(stream_id_);
    self.swap(self_);
  }

  void OnVerdict(Verdict verdict) override { Send(ToProto(verdict)); }

  void OnSessionError(uint64_t session_id, const absl::Status& status) override {
    Send(ToProto(session_id, status));
  }

  void OnInboxRoom() override {
    MutexLock lock(mutex_);
    may_read_ = true;
    Advance();
  }

  void OnStreamEnd(const absl::Status& status) override {
    MutexLock lock(mutex_);
    End(status);
    Advance();
  }

 private:
  void Send(v1::VerifyResponse response) {
    MutexLock lock(mutex_);
    if (!is_abandoned_) unsent_.push_back(std::move(response));
    Advance();
  }

  // Finish with `status` once everything unsent is out.
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_ending_) return;
    is_ending_ = true;
    final_status_ = status;
  }

  // Nobody reads answers any more.
  void Abandon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    End(absl::OkStatus());
    is_abandoned_ = true;
    unsent_.clear();
  }

  // Starts what can be started. The lock is held meanwhile, so that nothing is started after
  // Finish; gRPC runs reactions on its own threads, never within these calls.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_finished_) return;
    if (may_read_ && !is_reading_ && !is_ending_ && unsent_.size() < kMaxUnsentVerdicts) {
      is_reading_ = true;
      StartRead(&request_);
    }
    if (!is_writing_ && !unsent_.empty()) {
      response_ = std::move(unsent_.front());
      unsent_.pop_front();
      is_writing_ = true;
      StartWrite(&response_);
    }
    if (is_ending_ && !is_writing_ && unsent_.empty()) {
      is_finished_ = true;
      Finish(ToGrpcStatus(final_status_));
    }
  }

  Engine& engine_;
  v1::VerifyRequest request_;    // of the read in progress
  v1::VerifyResponse response_;  // of the write in progress

  Mutex mutex_;
  std::shared_ptr<VerifyCall> self_ ABSL_GUARDED_BY(mutex_);
  uint64_t stream_id_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none
  std::deque<v1::VerifyResponse> unsent_ ABSL_GUARDED_BY(mutex_);
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);
  bool may_read_ ABSL_GUARDED_BY(mutex_) = false;  // the engine has room
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<v1::VerifyRequest, v1::VerifyResponse>* VerifierService::Verify(
    grpc::CallbackServerContext*) {
  auto call = std::make_shared<VerifyCall>(engine_);
  VerifyCall* const reactor = call.get();
  reactor->Start(std::move(call));
  return reactor;
}

grpc::ServerUnaryReactor* VerifierService::GetVerifierInfo(grpc::CallbackServerContext* context,
                                                           const v1::GetVerifierInfoRequest*,
                                                           v1::GetVerifierInfoResponse* response) {
  *response = ToProto(engine_.info());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace selfsame::verifier
