#pragma once

// The service on a real gRPC server, over an engine that the test plays.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/mutex.h"
#include "common/rpc/grpc_server.h"
#include "common/tokenizer/tokenizer.h"
#include "decoder/service.h"

namespace selfsame::decoder {

inline constexpr int32_t kContextLimit = 100000;
inline constexpr uint64_t kSeed = 42;

// Takes requests and leaves their events to the test.
class FakeEngine final : public Engine {
 public:
  absl::StatusOr<std::vector<uint64_t>> Submit(std::vector<Submission> submissions) override {
    MutexLock lock(mutex_);
    if (!refusal_.ok()) return refusal_;
    request_ = submissions.front().request;
    sink_ = submissions.front().sink;
    submissions_ = std::move(submissions);
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < submissions_.size(); ++i) ids.push_back(7 + i);
    changed_.NotifyAll();
    return ids;
  }

  void Cancel(uint64_t id) override {
    std::shared_ptr<GenerationSink> sink;
    {
      MutexLock lock(mutex_);
      cancelled_id_ = id;
      cancelled_ids_.push_back(id);
      sink = id == 7 ? sink_ : submissions_[id - 7].sink;
      changed_.NotifyAll();
    }
    sink->OnError(CancelledError("cancelled"));
  }

  EngineStats stats() const override { return {.running_requests = 1, .waiting_requests = 2}; }

  void Refuse(absl::Status status) {
    MutexLock lock(mutex_);
    refusal_ = std::move(status);
  }

  // Blocks until a request is there.
  std::shared_ptr<GenerationSink> sink() {
    MutexLock lock(mutex_);
    while (sink_ == nullptr) changed_.Wait(mutex_);
    return sink_;
  }

  GenerationRequest request() {
    MutexLock lock(mutex_);
    while (sink_ == nullptr) changed_.Wait(mutex_);
    return *request_;
  }

  uint64_t WaitForCancel() {
    MutexLock lock(mutex_);
    while (!cancelled_id_.has_value()) changed_.Wait(mutex_);
    return *cancelled_id_;
  }

  // Of all choices.
  std::vector<Submission> submissions() {
    MutexLock lock(mutex_);
    while (sink_ == nullptr) changed_.Wait(mutex_);
    return submissions_;
  }

  std::vector<uint64_t> WaitForCancels(size_t count) {
    MutexLock lock(mutex_);
    while (cancelled_ids_.size() < count) changed_.Wait(mutex_);
    return cancelled_ids_;
  }

  // Drops the engine's reference to the request.
  void Forget() {
    MutexLock lock(mutex_);
    sink_.reset();
    submissions_.clear();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::optional<GenerationRequest> request_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GenerationSink> sink_ ABSL_GUARDED_BY(mutex_);
  std::vector<Submission> submissions_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> cancelled_id_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> cancelled_ids_ ABSL_GUARDED_BY(mutex_);
};

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Load(std::string(SELFSAME_SOURCE_DIR) + "/tests/data/tiny-kjv");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    ServiceOptions options;
    options.limits = {.context_limit = kContextLimit,
                      .vocab_size = tokenizer_->vocab_size(),
                      .tokenizer_vocab_size = tokenizer_->vocab_size()};
    options.version = "1.2.3";
    options.model = "model";
    service_ = std::make_unique<InferenceService>(
        std::move(options),
        ServiceDependencies{.tokenizer = *tokenizer_,
                            .engine = engine_,
                            .verifier_states =
                                [] {
                                  return std::vector<VerifierState>{{.address = "a:1",
                                                                     .is_connected = true,
                                                                     .fingerprint = "f",
                                                                     .last_error = ""}};
                                },
                            .random = [] { return kSeed; },
                            .on_refused =
                                [this](bool is_deterministic, absl::StatusCode code) {
                                  if (code != absl::StatusCode::kInvalidArgument) return;
                                  ++(is_deterministic ? deterministic_refusals_ : refusals_);
                                }});
    auto server = GrpcServer::Start("127.0.0.1:0", {service_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    stub_ = v1::Inference::NewStub(grpc::CreateCustomChannel(
        server_->address(), grpc::InsecureChannelCredentials(), arguments));
  }

  static v1::GenerateRequest Request() {
    v1::GenerateRequest request;
    request.mutable_prompt_token_ids()->add_ids(5);
    return request;
  }

  std::atomic<int> refusals_ = 0;
  std::atomic<int> deterministic_refusals_ = 0;
  FakeEngine engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

inline ChunkEvent Chunk(int position, int token) {
  return {.first_position = position, .token_ids = {token}, .logprobs = {}, .text = "x"};
}

}  // namespace selfsame::decoder
