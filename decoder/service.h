#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "decoder/convert.h"
#include "decoder/engine/engine.h"
#include "decoder/generate_call.h"
#include "decoder/prompt_encoder.h"
#include "decoder/validate.h"
#include "decoder/verifier_client.h"
#include "decoder/work_queue.h"
#include "selfsame/v1/inference.grpc.pb.h"

namespace selfsame::decoder {

struct ServiceOptions {
  RequestLimits limits;
  RequestDefaults defaults;
  // What GetServerInfo says beside these.
  std::string version;
  std::string model;
  std::string arithmetic;
  int32_t max_batch_size = 0;
  int32_t window_size = 0;
};

// What surrounds the service; everything must outlive it.
struct ServiceDependencies {
  const Tokenizer& tokenizer;
  Engine& engine;
  std::function<std::vector<VerifierState>()> verifier_states;
  // Seeds and request ids; safe from any thread.
  std::function<uint64_t()> random;
  // Told of each Generate call that ends before the engine has seen it; null: nobody is. Any
  // thread.
  std::function<void(bool is_deterministic, absl::StatusCode)> on_refused = nullptr;
};

// The gRPC edge of Inference: validates, converts, hands over to the engine, writes what comes
// back. Generate and Tokenize take raw bytes, so that text that is not UTF-8 gets an error that
// names the field; gRPC's own parsing would answer UNIMPLEMENTED.
class InferenceService final
    : public v1::Inference::WithRawCallbackMethod_Generate<
          v1::Inference::WithRawCallbackMethod_Tokenize<
              v1::Inference::WithCallbackMethod_Detokenize<
                  v1::Inference::WithCallbackMethod_GetServerInfo<v1::Inference::Service>>>> {
 public:
  InferenceService(ServiceOptions options, ServiceDependencies dependencies);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

 private:
  // The call's x-request-id, or one made here; also put into the initial metadata.
  absl::StatusOr<std::string> ResolveRequestId(grpc::CallbackServerContext& context) const;
  // A parsed and validated Generate call, before its prompt is tokenised.
  struct ReceivedGeneration {
    std::string request_id;
    std::optional<SteadyTime> deadline;
    v1::GenerateRequest request;
  };
  // Fills `received` as far as the call is sound.
  absl::Status ReceiveGeneration(grpc::CallbackServerContext& context,
                                 const grpc::ByteBuffer& bytes, ReceivedGeneration& received) const;
  void CountRefusal(bool is_deterministic, const absl::Status& status) const;
  absl::StatusOr<PreparedGeneration> PrepareGeneration(const ReceivedGeneration& received) const;
  // Runs `encode` at once when `text_bytes` are few, else on the thread for long texts;
  // RESOURCE_EXHAUSTED, with `encode` dropped, when too many of these wait.
  absl::Status RunEncoding(size_t text_bytes, std::function<void()> encode);

  const ServiceOptions options_;
  const ServiceDependencies dependencies_;
  const PromptEncoder encoder_;
  WorkQueue long_texts_;
};

}  // namespace selfsame::decoder
