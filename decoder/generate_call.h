#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "decoder/engine/engine.h"
#include "decoder/response_queue.h"
#include "selfsame/v1/inference.pb.h"

namespace selfsame::decoder {

// What a Generate call asks for, ready for the engine.
struct PreparedGeneration {
  GenerationRequest request;  // of choice 0
  int32_t choice_count = 1;
  std::vector<v1::GenerateResponse> echo;  // sent after Started
};

// One Generate call: a request of the engine for each choice, and one stream for the events of all.
// The engine's sinks and gRPC hold it together: it lives until the call is over and the engine has
// let go of it.
//
// The call ends with the last choice, or with the first error of one; the other choices are
// cancelled then.
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  explicit GenerateCall(Engine& engine);

  // What gRPC holds, until OnDone. Called once, before anything else.
  void Hold() { self_ = shared_from_this(); }

  // Hands the choices to the engine, or ends the call with the error.
  void Start(absl::StatusOr<PreparedGeneration> generation);

  // The client is gone, or the call has failed.
  bool HasEnded();

  // Ends the call. What the engine still has of it is not wanted any more.
  void Fail(const absl::Status& status);

  // Reactions of gRPC.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class ChoiceSink;

  // Events of the engine, from all choices.
  void OnStarted(const StartedEvent& event);
  void OnPromptLogprobs(const PromptLogprobsEvent& event);
  void OnChunk(int32_t choice_index, const ChunkEvent& event);
  void OnRetract(int32_t choice_index, const RetractEvent& event);
  void OnComplete(int32_t choice_index, const CompleteEvent& event);

  void Send(v1::GenerateResponse response);
  void End(const absl::Status& status);
  // From the engine's thread, which must not call the engine: another one does.
  void CancelSoon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelInEngine();

  // Starts whatever is next, if nothing is in progress: a write, the status, or both at once. The
  // thread that sets is_writing_ or is_finished_ is the one that may touch outgoing_.
  void Advance();

  Engine& engine_;
  std::shared_ptr<GenerateCall> self_;  // gRPC's reference, until OnDone
  // Written by Start, before the engine has a request.
  v1::Started started_;
  std::vector<v1::GenerateResponse> echo_;
  uint64_t seed_ = 0;
  int32_t choice_count_ = 1;

  // The engine thread's.
  bool has_started_ = false;
  int32_t completed_count_ = 0;

  grpc::ByteBuffer outgoing_;
  grpc::Alarm cancelling_;

  Mutex mutex_;
  ResponseQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> engine_ids_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // set: no more events count
  bool is_unwanted_ ABSL_GUARDED_BY(mutex_) = false;         // nobody waits for events
  bool is_cancelling_ ABSL_GUARDED_BY(mutex_) = false;       // cancelling_ is set
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace selfsame::decoder
