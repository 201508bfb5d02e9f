#pragma once

#include <grpcpp/support/server_callback.h>

#include "selfsame/v1/verification.grpc.pb.h"
#include "verifier/engine/engine.h"

namespace selfsame::verifier {

// selfsame.v1.Verifier over an engine, which must outlive the service and its calls. Calls run on
// gRPC's threads: they convert and enqueue, and never wait for the engine.
class VerifierService final : public v1::Verifier::CallbackService {
 public:
  explicit VerifierService(Engine& engine) : engine_(engine) {}

  grpc::ServerBidiReactor<v1::VerifyRequest, v1::VerifyResponse>* Verify(
      grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* GetVerifierInfo(grpc::CallbackServerContext* context,
                                            const v1::GetVerifierInfoRequest* request,
                                            v1::GetVerifierInfoResponse* response) override;

 private:
  Engine& engine_;
};

}  // namespace selfsame::verifier
