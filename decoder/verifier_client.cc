#include "decoder/verifier_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/rpc/grpc_status.h"
#include "decoder/convert.h"

namespace selfsame::decoder {
namespace {

std::shared_ptr<grpc::Channel> CreateChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxGrpcMessageBytes);
  // The pauses between attempts are ours; the channel's own must not come on top.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMinReconnectDelayMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kMinReconnectDelayMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 10 * kMinReconnectDelayMs);
  // A host that disappears without closing the connection is noticed by these pings.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

// One Verify call, from StartCall to OnDone.
class VerifierClient::Stream final
    : public grpc::ClientBidiReactor<v1::VerifyRequest, v1::VerifyResponse> {
 public:
  Stream(int index, VerifierEvents& events) : index_(index), events_(events) {}

  void Start(v1::Verifier::Stub& stub) {
    stub.async()->Verify(&context_, this);
    AddHold();  // for writes that start outside of reactions
    StartRead(&response_);
    StartCall();
  }

  void OpenSession(v1::OpenSession opening) {
    MutexLock lock(mutex_);
    sessions_.insert(opening.session_id());
    if (first_session_id_ == 0) first_session_id_ = opening.session_id();
    newest_session_id_ = opening.session_id();
    v1::VerifyRequest request;
    *request.mutable_open_session() = std::move(opening);
    Enqueue(std::move(request));
  }

  void SubmitWindow(v1::SubmitWindow window) {
    MutexLock lock(mutex_);
    if (!sessions_.contains(window.session_id())) return;
    v1::VerifyRequest request;
    *request.mutable_submit_window() = std::move(window);
    Enqueue(std::move(request));
  }

  void CloseSession(uint64_t session_id) {
    MutexLock lock(mutex_);
    if (sessions_.erase(session_id) == 0) return;
    v1::VerifyRequest request;
    request.mutable_close_session()->set_session_id(session_id);
    Enqueue(std::move(request));
  }

  // Ends the call; the first reason given is the one Wait returns.
  void Fail(const absl::Status& reason) {
    MutexLock lock(mutex_);
    FailLocked(reason);
  }

  // Blocks until the call is over and no reaction runs or will run. Why it ended, never OK.
  // `is_healthy`: the verifier answered and kept to the protocol until then.
  absl::Status Wait(bool* is_healthy) {
    MutexLock lock(mutex_);
    while (!is_done_) done_.Wait(mutex_);
    *is_healthy = has_answered_ && !has_failed_;
    return reason_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        MutexLock lock(mutex_);
        is_closed_ = true;
      }
      RemoveHold();
      return;
    }
    bool is_trusted = false;
    {
      MutexLock lock(mutex_);
      has_answered_ = true;
      // What arrives after a breach of protocol is not to be believed.
      is_trusted = reason_.ok();
    }
    if (is_trusted) {
      const absl::Status status = Deliver();
      if (!status.ok()) Fail(status);
    }
    StartRead(&response_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    unsent_bytes_ -= unsent_.front().ByteSizeLong();
    unsent_.pop_front();
    // A write that failed means that the call is ending; the pending read will say so.
    is_writing_ = false;
    if (ok) WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    MutexLock lock(mutex_);
    if (reason_.ok()) {
      reason_ = status.ok() ? UnavailableError("closed the stream") : FromGrpcStatus(status);
    }
    is_done_ = true;
    done_.NotifyAll();
  }

 private:
  absl::Status Deliver() {
    switch (response_.message_case()) {
      case v1::VerifyResponse::kVerdict: {
        RETURN_IF_ERROR(CheckSession(response_.verdict().session_id()));
        ASSIGN_OR_RETURN(Verdict verdict, FromProto(response_.verdict()));
        events_.OnVerdict(index_, std::move(verdict));
        return absl::OkStatus();
      }
      case v1::VerifyResponse::kSessionError: {
        const v1::SessionError& error = response_.session_error();
        RETURN_IF_ERROR(CheckSession(error.session_id()));
        {
          MutexLock lock(mutex_);
          sessions_.erase(error.session_id());
        }
        events_.OnSessionError(index_, error.session_id(), FromProto(error));
        return absl::OkStatus();
      }
      case v1::VerifyResponse::MESSAGE_NOT_SET:
        break;
    }
    return InternalError("sent an empty VerifyResponse");
  }

  // Answers may come late, for sessions closed meanwhile, but not for sessions never opened here.
  absl::Status CheckSession(uint64_t session_id) {
    MutexLock lock(mutex_);
    if (first_session_id_ != 0 && session_id >= first_session_id_ &&
        session_id <= newest_session_id_) {
      return absl::OkStatus();
    }
    return InternalError(
        absl::StrCat("answered for session ", session_id, ", which this stream never opened"));
  }

  void Enqueue(v1::VerifyRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_closed_ || !reason_.ok()) return;
    unsent_bytes_ += request.ByteSizeLong();
    if (unsent_bytes_ > static_cast<size_t>(kMaxUnsentVerifierBytes)) {
      FailLocked(UnavailableError(
          absl::StrCat("reads too slowly: more than ", kMaxUnsentVerifierBytes, " bytes wait")));
      return;
    }
    unsent_.push_back(std::move(request));
    WriteNext();
  }

  // Writes start under the mutex: after is_closed_ is set, none may.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_closed_ || is_writing_ || unsent_.empty()) return;
    is_writing_ = true;
    StartWrite(&unsent_.front());
  }

  void FailLocked(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SELFSAME_CHECK(!reason.ok());
    if (!reason_.ok()) return;
    reason_ = reason;
    has_failed_ = true;
    context_.TryCancel();
  }

  const int index_;
  VerifierEvents& events_;
  grpc::ClientContext context_;
  v1::VerifyResponse response_;  // of the read in progress

  Mutex mutex_;
  CondVar done_;
  absl::flat_hash_set<uint64_t> sessions_ ABSL_GUARDED_BY(mutex_);  // open on this stream
  uint64_t first_session_id_ ABSL_GUARDED_BY(mutex_) = 0;           // opened here; 0: none yet
  uint64_t newest_session_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<v1::VerifyRequest> unsent_ ABSL_GUARDED_BY(mutex_);  // front: being written
  size_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_failed_ ABSL_GUARDED_BY(mutex_) = false;  // ended by us, for reason_
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

VerifierClient::VerifierClient(VerifierClientOptions options)
    : options_(std::move(options)),
      channel_(CreateChannel(options_.address)),
      stub_(v1::Verifier::NewStub(channel_)) {
  MutexLock lock(mutex_);
  state_.address = options_.address;
  state_.last_error = "not connected yet";
}

VerifierClient::~VerifierClient() { Stop(); }

void VerifierClient::Start(VerifierEvents& events) {
  SELFSAME_CHECK(events_ == nullptr);
  events_ = &events;
  thread_ = std::thread([this] { Run(); });
}

void VerifierClient::Stop() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    if (info_call_ != nullptr) info_call_->TryCancel();
    if (stream_ != nullptr) stream_->Fail(CancelledError("the decoder is shutting down"));
    stopped_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

VerifierState VerifierClient::state() const {
  MutexLock lock(mutex_);
  return state_;
}

std::shared_ptr<VerifierClient::Stream> VerifierClient::stream() const {
  MutexLock lock(mutex_);
  return stream_;
}

void VerifierClient::OpenSession(SessionOpening opening) {
  if (const auto stream = this->stream()) stream->OpenSession(ToProto(opening));
}

void VerifierClient::SubmitWindow(Window window) {
  if (const auto stream = this->stream()) stream->SubmitWindow(ToProto(window));
}

void VerifierClient::CloseSession(uint64_t session_id) {
  if (const auto stream = this->stream()) stream->CloseSession(session_id);
}

void VerifierClient::Reset(absl::Status reason) {
  if (const auto stream = this->stream()) stream->Fail(reason);
}

void VerifierClient::Run() {
  std::chrono::milliseconds delay(kMinReconnectDelayMs);
  for (;;) {
    bool was_healthy = false;
    const absl::Status reason = ServeOnce(&was_healthy);
    ReportDown(reason);
    if (was_healthy) delay = std::chrono::milliseconds(kMinReconnectDelayMs);
    if (!Pause(delay)) return;
    delay = std::min(2 * delay, std::chrono::milliseconds(kMaxReconnectDelayMs));
  }
}

absl::Status VerifierClient::ServeOnce(bool* was_healthy) {
  ASSIGN_OR_RETURN(VerifierInfo info, FetchInfo());
  RETURN_IF_ERROR(CheckFitness(info));
  const auto stream = std::make_shared<Stream>(options_.index, *events_);
  {
    MutexLock lock(mutex_);
    if (is_stopping_) return CancelledError("stopping");
    stream_ = stream;
    stream->Start(*stub_);
    state_.is_connected = true;
    state_.fingerprint = info.fingerprint;
    state_.last_error.clear();
  }
  LogInfo("verifier ", options_.address, ": connected, fingerprint ", info.fingerprint);
  events_->OnVerifierUp(options_.index, std::move(info));
  absl::Status reason = stream->Wait(was_healthy);
  MutexLock lock(mutex_);
  stream_ = nullptr;
  state_.is_connected = false;
  return reason;
}

absl::StatusOr<VerifierInfo> VerifierClient::FetchInfo() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(kVerifierInfoTimeoutMs));
  {
    MutexLock lock(mutex_);
    if (is_stopping_) return CancelledError("stopping");
    info_call_ = &context;
  }
  v1::GetVerifierInfoResponse response;
  const grpc::Status status =
      stub_->GetVerifierInfo(&context, v1::GetVerifierInfoRequest(), &response);
  {
    MutexLock lock(mutex_);
    info_call_ = nullptr;
  }
  if (!status.ok()) return FromGrpcStatus(status);
  return FromProto(response);
}

absl::Status VerifierClient::CheckFitness(const VerifierInfo& info) const {
  if (info.context_limit != options_.context_limit) {
    return FailedPreconditionError(absl::StrCat("its context limit is ", info.context_limit,
                                                ", this decoder's is ", options_.context_limit));
  }
  if (info.vocab_size != options_.vocab_size) {
    return FailedPreconditionError(absl::StrCat("its vocabulary has ", info.vocab_size,
                                                " tokens, this decoder's has ",
                                                options_.vocab_size));
  }
  return absl::OkStatus();
}

void VerifierClient::ReportDown(const absl::Status& reason) {
  const std::string message = absl::StrCat("verifier ", options_.address, ": ", reason.message());
  {
    MutexLock lock(mutex_);
    if (is_stopping_ || state_.last_error == message) return;
    state_.last_error = message;
  }
  LogWarning(message);
  // An unfit verifier stays unfit; everything else may pass.
  events_->OnVerifierDown(options_.index, absl::IsFailedPrecondition(reason)
                                              ? FailedPreconditionError(message)
                                              : UnavailableError(message));
}

bool VerifierClient::Pause(std::chrono::milliseconds delay) {
  const auto end = std::chrono::steady_clock::now() + delay;
  MutexLock lock(mutex_);
  while (!is_stopping_ && std::chrono::steady_clock::now() < end) {
    stopped_.WaitUntil(mutex_, end);
  }
  return !is_stopping_;
}

}  // namespace selfsame::decoder
