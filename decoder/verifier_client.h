#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "decoder/engine/types.h"
#include "selfsame/v1/verification.grpc.pb.h"

namespace selfsame::decoder {

struct VerifierClientOptions {
  int index = 0;        // what the events call this verifier
  std::string address;  // HOST:PORT
  // Both must equal the verifier's own, else it is unfit.
  int32_t context_limit = 0;
  int32_t vocab_size = 0;
};

// What GetServerInfo tells of a verifier.
struct VerifierState {
  std::string address;
  bool is_connected = false;
  std::string fingerprint;  // of the latest connection; empty before the first
  std::string last_error;   // empty while connected
};

// The connection to one verifier: finds out whether the verifier is fit, holds the Verify stream,
// and connects again whenever that breaks, after a pause that doubles from kMinReconnectDelayMs to
// kMaxReconnectDelayMs until the verifier
// has answered and kept to the protocol.
//
// What the engine sends for a session that was not opened on the present stream is dropped: the
// verifier has lost it, and the engine knows or is about to know.
//
// All calls are safe from any thread. Events come from this object's thread and from gRPC's, in the
// order VerifierEvents asks for. Failed attempts for one and the same reason are reported once.
class VerifierClient final : public VerifierLink {
 public:
  explicit VerifierClient(VerifierClientOptions options);
  ~VerifierClient() override;

  // Starts connecting. Called once; `events` must live until Stop has returned.
  void Start(VerifierEvents& events);
  // Ends the stream and the thread. No event comes after it returns. Idempotent.
  void Stop();

  VerifierState state() const;

  void OpenSession(SessionOpening opening) override;
  void SubmitWindow(Window window) override;
  void CloseSession(uint64_t session_id) override;
  void Reset(absl::Status reason) override;

 private:
  class Stream;

  void Run();
  // Connects and serves one stream until it ends; why it ended, never OK. `was_healthy` is set when
  // the verifier answered something and kept to the protocol.
  absl::Status ServeOnce(bool* was_healthy);
  absl::StatusOr<VerifierInfo> FetchInfo();
  absl::Status CheckFitness(const VerifierInfo& info) const;
  void ReportDown(const absl::Status& reason);
  // False when stopping.
  bool Pause(std::chrono::milliseconds delay);
  std::shared_ptr<Stream> stream() const;

  const VerifierClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Verifier::Stub> stub_;
  VerifierEvents* events_ = nullptr;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar stopped_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* info_call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // in progress, or null
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);            // or null
  VerifierState state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace selfsame::decoder
