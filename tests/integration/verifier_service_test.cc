// The verifier's network edge: the service over a real engine in this process, spoken to through
// gRPC.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/canonical/rungs.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/grpc_server.h"
#include "kernels/cpu/cpu_ops.h"
#include "selfsame/v1/verification.grpc.pb.h"
#include "tests/testing/canonical_loop.h"
#include "tests/testing/tiny_model.h"
#include "verifier/engine/engine.h"
#include "verifier/service.h"

namespace selfsame::verifier {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocabSize = 512;

class VerifierServiceTest : public ::testing::Test {
 protected:
  VerifierServiceTest() {
    testing::WriteTinyModel(dir_.path(), {.vocab_size = kVocabSize});
    auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 1});
    model_ = *Model::Load(dir_.path(), {.max_rows = 64, .max_logit_rows = 64, .context_limit = 256},
                          *std::move(ops));
    VerifierInfo info{.fingerprint = "fp",
                      .arithmetic = "test",
                      .context_limit = 256,
                      .vocab_size = kVocabSize,
                      .max_window_size = 16,
                      .max_sessions = 4096,
                      .rungs = DefaultRungs(64)};
    engine_ = std::make_unique<Engine>(
        std::make_unique<Worker>(*model_, *model_->CreateKvCache(64), std::move(info),
                                 std::chrono::nanoseconds(0), DecideWindow),
        [](const absl::Status&) {});
    service_ = std::make_unique<VerifierService>(*engine_);
    server_ = *GrpcServer::Start("127.0.0.1:0", {service_.get()});
    stub_ = v1::Verifier::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  ~VerifierServiceTest() override {
    server_.reset();
    engine_.reset();
  }

  static v1::VerifyRequest Open(uint64_t id, int32_t max_tokens = 20) {
    v1::VerifyRequest request;
    v1::OpenSession& open = *request.mutable_open_session();
    open.set_session_id(id);
    for (const int32_t token_id : {5, 6, 7}) open.add_prompt_token_ids(token_id);
    open.mutable_sampling()->set_top_p(1.0f);
    open.mutable_stop()->set_max_tokens(max_tokens);
    return request;
  }

  static v1::VerifyRequest Submit(uint64_t id, uint64_t window_id, int32_t first_position,
                                  const std::vector<int32_t>& candidates) {
    v1::VerifyRequest request;
    v1::SubmitWindow& window = *request.mutable_submit_window();
    window.set_session_id(id);
    window.set_window_id(window_id);
    window.set_first_position(first_position);
    window.mutable_candidate_ids()->Add(candidates.begin(), candidates.end());
    return request;
  }

  testing::TempDir dir_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<VerifierService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Verifier::Stub> stub_;
};

TEST_F(VerifierServiceTest, TellsAboutItself) {
  grpc::ClientContext context;
  v1::GetVerifierInfoResponse info;
  ASSERT_TRUE(stub_->GetVerifierInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.fingerprint(), "fp");
  EXPECT_EQ(info.arithmetic(), "test");
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(info.context_limit(), 256);
  EXPECT_EQ(info.vocab_size(), kVocabSize);
  EXPECT_EQ(info.max_window_size(), 16);
  EXPECT_EQ(info.max_sessions(), 4096);
  EXPECT_EQ(info.rungs(info.rungs_size() - 1), 64);
}

TEST_F(VerifierServiceTest, VerdictsCarryTheCanonicalAnswer) {
  testing::LoopParams params;
  params.max_tokens = 20;
  const testing::Answer answer = testing::RunCanonicalLoop(*model_, {5, 6, 7}, params);

  grpc::ClientContext context;
  const auto stream = stub_->Verify(&context);
  v1::VerifyResponse response;
  ASSERT_TRUE(stream->Write(Open(9)));
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(response.has_verdict());
  EXPECT_EQ(response.verdict().session_id(), 9u);
  EXPECT_EQ(response.verdict().window_id(), 0u);
  EXPECT_EQ(response.verdict().outcome(), v1::OUTCOME_COMMIT);
  EXPECT_EQ(response.verdict().committed_length(), 4);
  EXPECT_EQ(response.verdict().canonical_token(), answer.token_ids[0]);
  ASSERT_EQ(response.verdict().logprobs_size(), 1);
  EXPECT_EQ(response.verdict().logprobs(0), answer.logprobs[0]);
  EXPECT_EQ(response.verdict().end(), v1::END_UNSPECIFIED);

  ASSERT_TRUE(stream->Write(Submit(9, 1, 4, {answer.token_ids[1], answer.token_ids[2]})));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.verdict().outcome(), v1::OUTCOME_COMMIT);
  EXPECT_FALSE(response.verdict().has_canonical_token());
  EXPECT_EQ(response.verdict().logprobs_size(), 2);

  const int32_t wrong = (answer.token_ids[3] + 1) % kVocabSize;
  ASSERT_TRUE(stream->Write(Submit(9, 2, 6, {wrong, 1, 2})));
  ASSERT_TRUE(stream->Write(Submit(9, 3, 9, {3})));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.verdict().outcome(), v1::OUTCOME_ROLLBACK);
  EXPECT_EQ(response.verdict().epoch(), 1u);
  EXPECT_EQ(response.verdict().committed_length(), 7);
  EXPECT_EQ(response.verdict().canonical_token(), answer.token_ids[3]);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.verdict().window_id(), 3u);
  EXPECT_EQ(response.verdict().outcome(), v1::OUTCOME_DISCARDED);
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(VerifierServiceTest, ASessionErrorLeavesStreamAndOtherSessionsAlone) {
  grpc::ClientContext context;
  const auto stream = stub_->Verify(&context);
  v1::VerifyResponse response;
  ASSERT_TRUE(stream->Write(Open(1)));
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(stream->Write(Open(2, 0)));
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(response.has_session_error());
  EXPECT_EQ(response.session_error().session_id(), 2u);
  EXPECT_EQ(response.session_error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(response.session_error().message(), HasSubstr("max_tokens"));
  ASSERT_TRUE(stream->Write(Submit(1, 1, 4, {1})));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_verdict());
}

TEST_F(VerifierServiceTest, ASessionBeyondTheLimitIsRefusedWithARetryHint) {
  grpc::ClientContext context;
  const auto stream = stub_->Verify(&context);
  v1::VerifyResponse response;
  for (uint64_t id = 0; id <= 4096; ++id) {
    ASSERT_TRUE(stream->Write(Open(id)));
    ASSERT_TRUE(stream->Read(&response));
    ASSERT_EQ(response.has_verdict(), id < 4096) << response.session_error().message();
  }
  EXPECT_EQ(response.session_error().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(response.session_error().retry_after_ms(), kSessionRetryMs);
}

TEST_F(VerifierServiceTest, AnEmptyRequestEndsItsStreamAlone) {
  grpc::ClientContext good_context;
  const auto good = stub_->Verify(&good_context);
  v1::VerifyResponse response;
  ASSERT_TRUE(good->Write(Open(1)));
  ASSERT_TRUE(good->Read(&response));

  grpc::ClientContext context;
  const auto stream = stub_->Verify(&context);
  ASSERT_TRUE(stream->Write(v1::VerifyRequest()));
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("message"));

  ASSERT_TRUE(good->Write(Submit(1, 1, 4, {1})));
  EXPECT_TRUE(good->Read(&response));
}

TEST_F(VerifierServiceTest, AVanishedDecoderFreesItsSessions) {
  // Twice the sessions there is room for, in streams that are cancelled one after the other.
  for (int round = 0; round < 4; ++round) {
    grpc::ClientContext context;
    const auto stream = stub_->Verify(&context);
    v1::VerifyResponse response;
    for (uint64_t id = 0; id < 2048; ++id) ASSERT_TRUE(stream->Write(Open(id)));
    for (uint64_t id = 0; id < 2048; ++id) {
      ASSERT_TRUE(stream->Read(&response));
      ASSERT_TRUE(response.has_verdict()) << response.session_error().message();
    }
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

// Reading pauses while too many answers are unsent, and goes on once they are read.
TEST_F(VerifierServiceTest, ADecoderThatReadsLateGetsEveryAnswer) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto stream = stub_->Verify(&context);
  // Windows of unknown sessions: each is answered by a session error.
  constexpr int kRequests = 3 * kMaxUnsentVerdicts;
  std::atomic<bool> has_written_enough = false;
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) {
      if (!stream->Write(Submit(static_cast<uint64_t>(i), 1, 1, {1}))) return;
      if (i < kMaxUnsentVerdicts) continue;
      has_written_enough = true;
      has_written_enough.notify_one();
    }
  });
  has_written_enough.wait(false);
  v1::VerifyResponse response;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.session_error().session_id(), static_cast<uint64_t>(i));
    EXPECT_EQ(response.session_error().code(), grpc::StatusCode::NOT_FOUND);
  }
  writer.join();
}

TEST_F(VerifierServiceTest, DrainEndsSessionsAndStreamsWithUnavailable) {
  grpc::ClientContext context;
  const auto stream = stub_->Verify(&context);
  v1::VerifyResponse response;
  ASSERT_TRUE(stream->Write(Open(1)));
  ASSERT_TRUE(stream->Read(&response));
  engine_->Drain(UnavailableError("the verifier is shutting down"));
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(response.has_session_error());
  EXPECT_EQ(response.session_error().session_id(), 1u);
  EXPECT_EQ(response.session_error().code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);

  grpc::ClientContext late_context;
  const auto late = stub_->Verify(&late_context);
  EXPECT_EQ(late->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace selfsame::verifier
