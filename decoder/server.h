#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/rpc/grpc_server.h"
#include "decoder/engine/types.h"
#include "decoder/service.h"
#include "decoder/verifier_client.h"

namespace selfsame::decoder {

// Health names. The service serves whether or not verifiers are up; the second name says whether
// deterministic requests can be served too.
inline constexpr char kHealthName[] = "selfsame.v1.Inference";
inline constexpr char kDeterministicHealthName[] = "selfsame.v1.Inference/deterministic";

// The listening process: the gRPC server, its health, and the connections to the verifiers.
class Server final : public VerifierEvents {
 public:
  // Listens, then starts the verifier clients, whose events go to the engine through this object.
  // `service`, `engine_events` and `verifiers` must outlive it. `is_authority`: deterministic
  // requests are served without verifiers.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& listen,
                                                       InferenceService& service,
                                                       VerifierEvents& engine_events,
                                                       std::vector<VerifierClient*> verifiers,
                                                       bool is_authority);
  ~Server() override;

  // HOST:PORT with the port really bound.
  const std::string& address() const { return grpc_server_->address(); }

  // Tells health checks that the end is near; calls are still taken.
  void StopServing();
  // Refuses new calls, gives those in progress `grace` to flush what they have, then ends the
  // connections to the verifiers. Idempotent.
  void Shutdown(std::chrono::milliseconds grace);

  void OnVerifierUp(int verifier, VerifierInfo info) override;
  void OnVerifierDown(int verifier, absl::Status status) override;
  void OnVerdict(int verifier, Verdict verdict) override;
  void OnSessionError(int verifier, uint64_t session_id, absl::Status status) override;

 private:
  Server(std::unique_ptr<GrpcServer> grpc_server, VerifierEvents& engine_events,
         std::vector<VerifierClient*> verifiers);
  void SetVerifierUp(int verifier, bool is_up);

  const std::unique_ptr<GrpcServer> grpc_server_;
  VerifierEvents& engine_events_;
  const std::vector<VerifierClient*> verifiers_;

  Mutex mutex_;
  std::set<int> verifiers_up_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace selfsame::decoder
