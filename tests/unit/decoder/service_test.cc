#include "decoder/service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/grpc_status.h"
#include "tests/unit/decoder/service_testing.h"

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ServiceTest, CandidatesAndRetractsArriveInTheirPlaces) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request();
  request.set_is_deterministic(true);
  request.set_stream_candidates(true);
  const auto reader = stub_->Generate(&context, request);
  const auto sink = engine_.sink();
  sink->OnStarted({.fingerprint = "f"});
  for (int i = 0; i < 2; ++i) {
    ChunkEvent candidate = Chunk(1 + i, 8);
    candidate.is_candidate = true;
    sink->OnChunk(candidate);
  }
  sink->OnRetract({.length = 2});
  sink->OnChunk(Chunk(1, 8));
  sink->OnChunk(Chunk(2, 9));
  sink->OnComplete({});
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_started());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_TRUE(response.chunk().is_candidate());
    EXPECT_EQ(response.chunk().first_position(), 1 + i);
  }
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.retract().length(), 2);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_FALSE(response.chunk().is_candidate());
  EXPECT_EQ(response.chunk().first_position(), 1);
}

TEST_F(ServiceTest, ResumedTokensArriveApartFromThePrompt) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_seed(1);
  request.add_resume_token_ids(8);
  const auto reader = stub_->Generate(&context, request);
  const auto sink = engine_.sink();
  EXPECT_THAT(engine_.request().prompt_token_ids, ElementsAre(5));
  EXPECT_THAT(engine_.request().resume_token_ids, ElementsAre(8));
  sink->OnError(CancelledError("enough"));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServiceTest, ResumingWithoutTheSeedIsRefused) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_temperature(1.0f);
  request.add_resume_token_ids(8);
  const grpc::Status status = stub_->Generate(&context, request)->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("resume_token_ids"));
}

TEST_F(ServiceTest, EventsArriveInOrderAndTheStreamEnds) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  const auto sink = engine_.sink();
  sink->OnStarted({.fingerprint = "f"});
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.started().fingerprint(), "f");
  EXPECT_EQ(response.started().params().seed(), kSeed);
  EXPECT_EQ(response.started().params().max_tokens(), kContextLimit - 1);
  EXPECT_EQ(response.started().request_id(), "000000000000002a000000000000002a");
  sink->OnChunk(Chunk(1, 8));
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_THAT(response.chunk().token_ids(), ElementsAre(8));
  CompleteEvent complete;
  complete.output_tokens = 1;
  sink->OnComplete(complete);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.complete().output_tokens(), 1);
  EXPECT_EQ(response.complete().seed(), kSeed);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServiceTest, AnErrorComesAfterEverythingThatStands) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  const auto sink = engine_.sink();
  sink->OnStarted({});
  for (int i = 0; i < 100; ++i) sink->OnChunk(Chunk(1 + i, i));
  sink->OnError(UnavailableError("gone"));
  v1::GenerateResponse response;
  int tokens = 0;
  while (reader->Read(&response)) tokens += response.chunk().token_ids_size();
  EXPECT_EQ(tokens, 100);
  EXPECT_EQ(FromGrpcStatus(reader->Finish()), UnavailableError("gone"));
}

TEST_F(ServiceTest, WhatTheEngineRefusesIsTold) {
  engine_.Refuse(ResourceExhaustedError("the queue is full", 500));
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  const absl::Status status = FromGrpcStatus(reader->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfterMsOf(status), 500);
}

TEST_F(ServiceTest, WhatTheEngineNeverSeesIsCounted) {
  const auto fail = [this](const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  };
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_top_p(2);
  fail(request);
  EXPECT_EQ(refusals_, 1);
  request = Request();
  request.set_is_deterministic(true);
  request.mutable_stop()->set_max_tokens(kContextLimit);
  fail(request);
  EXPECT_EQ(refusals_, 1);
  EXPECT_EQ(deterministic_refusals_, 1);
}

TEST_F(ServiceTest, ClientThatGoesAwayIsCancelledInTheEngine) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  engine_.sink()->OnStarted({});
  context.TryCancel();
  EXPECT_EQ(engine_.WaitForCancel(), 7u);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServiceTest, DeadlineReachesTheEngine) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  const auto reader = stub_->Generate(&context, Request());
  const auto deadline = engine_.request().deadline;
  ASSERT_TRUE(deadline.has_value());
  const auto left = *deadline - std::chrono::steady_clock::now();
  EXPECT_GT(left, std::chrono::minutes(59));
  EXPECT_LT(left, std::chrono::minutes(61));
  engine_.sink()->OnError(DeadlineExceededError("late"));
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, WithoutADeadlineThereIsNone) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  EXPECT_FALSE(engine_.request().deadline.has_value());
  engine_.sink()->OnComplete({});
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServiceTest, ClientThatDoesNotReadIsEndedAtTheLimit) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  const auto sink = engine_.sink();
  sink->OnStarted({});
  // The connection itself takes some; the rest waits in the service up to its limit.
  const std::string text(1 << 10, 'x');
  constexpr int kEnough = 64 << 10;
  for (int i = 0; i < kEnough; ++i) {
    sink->OnChunk({.first_position = 1 + i, .token_ids = {1}, .logprobs = {}, .text = text});
  }
  EXPECT_EQ(engine_.WaitForCancel(), 7u);
  v1::GenerateResponse response;
  int tokens = 0;
  while (reader->Read(&response)) tokens += response.chunk().token_ids_size();
  EXPECT_LT(tokens, kEnough);
  const absl::Status status = FromGrpcStatus(reader->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("reads too slowly"));
}

TEST_F(ServiceTest, CallOutlivesTheEnginesInterest) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  engine_.sink()->OnStarted({});
  engine_.sink()->OnComplete({});
  engine_.Forget();
  v1::GenerateResponse response;
  int messages = 0;
  while (reader->Read(&response)) ++messages;
  EXPECT_EQ(messages, 2);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServiceTest, LongPromptsAreServedToo) {
  v1::GenerateRequest request;
  std::string text;
  while (text.size() < 2 * kLongTextBytes) text += "In the beginning ";
  request.set_prompt(text);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  EXPECT_GT(engine_.request().prompt_token_ids.size(), 10000u);
  engine_.sink()->OnComplete({});
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());

  grpc::ClientContext tokenize_context;
  v1::TokenizeRequest tokenize;
  tokenize.set_text(text);
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(stub_->Tokenize(&tokenize_context, tokenize, &tokens).ok());
  EXPECT_EQ(static_cast<size_t>(tokens.token_ids_size()),
            engine_.request().prompt_token_ids.size());
}

TEST_F(ServiceTest, TooManyLongTextsAreRefusedAndTheOthersServed) {
  constexpr int kCalls = kMaxWaitingLongTexts + 24;
  std::atomic<int> refused = 0;
  std::atomic<int> served = 0;
  v1::TokenizeRequest request;
  request.set_text(std::string(2 * kLongTextBytes, 'a'));
  std::vector<std::thread> threads;
  for (int i = 0; i < kCalls; ++i) {
    threads.emplace_back([&] {
      grpc::ClientContext context;
      v1::TokenizeResponse response;
      const absl::Status status = FromGrpcStatus(stub_->Tokenize(&context, request, &response));
      served += status.ok();
      refused += absl::IsResourceExhausted(status) && RetryAfterMsOf(status).has_value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(served, kMaxWaitingLongTexts);
  EXPECT_EQ(served + refused, kCalls);
}

TEST_F(ServiceTest, ServerInfoTellsVerifiersAndLoad) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse response;
  ASSERT_TRUE(stub_->GetServerInfo(&context, v1::GetServerInfoRequest(), &response).ok());
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.model(), "model");
  EXPECT_EQ(response.running_requests(), 1);
  EXPECT_EQ(response.waiting_requests(), 2);
  ASSERT_EQ(response.verifiers_size(), 1);
  EXPECT_EQ(response.verifiers(0).address(), "a:1");
  EXPECT_TRUE(response.verifiers(0).connected());
  EXPECT_EQ(response.verifiers(0).fingerprint(), "f");
}

TEST_F(ServiceTest, ChatIsRenderedWithTheModelsTemplate) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hello");
  v1::TokenizeResponse response;
  const absl::Status status = FromGrpcStatus(stub_->Tokenize(&context, request, &response));
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<int32_t> ids(response.token_ids().begin(), response.token_ids().end());
  EXPECT_EQ(*tokenizer_->Decode(ids, /*skip_special_tokens=*/false),
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace selfsame::decoder
