#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/grpc_status.h"
#include "tests/unit/decoder/service_testing.h"

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;

TEST_F(ServiceTest, ChoicesAreRequestsOfOneCall) {
  v1::GenerateRequest request = Request();
  request.set_n(3);
  request.set_prompt_logprobs(2);
  request.set_is_deterministic(true);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  const std::vector<Submission> choices = engine_.submissions();
  ASSERT_EQ(choices.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    const GenerationRequest& choice = choices[static_cast<size_t>(i)].request;
    EXPECT_EQ(choice.choice_index, i);
    EXPECT_EQ(choice.seed, kSeed);
    EXPECT_EQ(choice.prompt_token_ids, choices[0].request.prompt_token_ids);
    EXPECT_EQ(choice.prompt_logprobs.has_value(), i == 0);
    EXPECT_NE(choice.group, nullptr);
    EXPECT_EQ(choice.group, choices[0].request.group);
  }
  choices[2].sink->OnStarted({.fingerprint = "f"});
  choices[2].sink->OnChunk(Chunk(1, 20));
  choices[0].sink->OnStarted({.fingerprint = "f"});
  choices[0].sink->OnPromptLogprobs({1, {{-0.5f, {{3, -0.25f}, {9, -2.0f}}}}});
  choices[0].sink->OnChunk(Chunk(1, 10));
  CompleteEvent complete;
  complete.output_tokens = 1;
  choices[0].sink->OnComplete(complete);
  choices[1].sink->OnStarted({.fingerprint = "f"});
  choices[1].sink->OnComplete({});
  choices[2].sink->OnComplete(complete);

  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.started().fingerprint(), "f");
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.chunk().choice_index(), 2);
  EXPECT_THAT(response.chunk().token_ids(), ElementsAre(20));
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.prompt_logprobs().first_position(), 1);
  EXPECT_THAT(response.prompt_logprobs().logprobs(), ElementsAre(-0.5f));
  ASSERT_EQ(response.prompt_logprobs().top_logprobs_size(), 1);
  EXPECT_THAT(response.prompt_logprobs().top_logprobs(0).token_ids(), ElementsAre(3, 9));
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.chunk().choice_index(), 0);
  EXPECT_THAT(response.chunk().token_ids(), ElementsAre(10));
  for (const int choice_index : {0, 1, 2}) {
    ASSERT_TRUE(reader->Read(&response));
    ASSERT_TRUE(response.has_complete());
    EXPECT_EQ(response.complete().choice_index(), choice_index);
  }
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServiceTest, AnErrorOfOneChoiceEndsTheCallAndCancelsTheOthers) {
  v1::GenerateRequest request = Request();
  request.set_n(3);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  const std::vector<Submission> choices = engine_.submissions();
  choices[0].sink->OnStarted({});
  choices[1].sink->OnError(UnavailableError("gone"));
  const std::vector<uint64_t> cancelled = engine_.WaitForCancels(3);
  EXPECT_THAT(cancelled, ElementsAre(7, 8, 9));
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(FromGrpcStatus(reader->Finish()), UnavailableError("gone"));
}

TEST_F(ServiceTest, AClientThatGoesAwayCancelsEveryChoice) {
  v1::GenerateRequest request = Request();
  request.set_n(2);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  engine_.sink()->OnStarted({});
  context.TryCancel();
  EXPECT_THAT(engine_.WaitForCancels(2), ElementsAre(7, 8));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServiceTest, EchoGivesThePromptBackOnceAndApartFromTheOutput) {
  v1::GenerateRequest request;
  std::string text;
  while (text.size() < (16 << 10)) text += "In the beginning \u00e9 ";
  request.set_prompt(text);
  request.set_n(2);
  request.set_echo(true);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  const std::vector<Submission> choices = engine_.submissions();
  const std::vector<int32_t> prompt = choices[0].request.prompt_token_ids;
  ASSERT_GT(prompt.size(), size_t{kMaxPromptPieceTokens});
  for (const Submission& choice : choices) choice.sink->OnStarted({});
  choices[0].sink->OnChunk(Chunk(static_cast<int>(prompt.size()), 5));
  for (const Submission& choice : choices) choice.sink->OnComplete({});
  std::vector<int32_t> echoed;
  std::string echoed_text;
  int output_chunks = 0;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (!response.has_chunk()) continue;
    const v1::Chunk& chunk = response.chunk();
    EXPECT_EQ(chunk.choice_index(), 0);
    if (chunk.first_position() == static_cast<int>(prompt.size())) {
      EXPECT_THAT(chunk.token_ids(), ElementsAre(5));
      ++output_chunks;
      continue;
    }
    EXPECT_EQ(chunk.first_position(), static_cast<int>(echoed.size()));
    EXPECT_EQ(output_chunks, 0);
    echoed.insert(echoed.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    echoed_text += chunk.text();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(echoed, prompt);
  EXPECT_EQ(echoed_text, text);
  EXPECT_EQ(output_chunks, 1);
}

// The client asked for them, so that their size is no reason to call it slow.
TEST_F(ServiceTest, PromptLogprobsMayWaitForASlowClient) {
  constexpr int kPromptTokens = 60000;
  v1::GenerateRequest request;
  for (int i = 0; i < kPromptTokens; ++i) request.mutable_prompt_token_ids()->add_ids(5);
  request.set_prompt_logprobs(10);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  const auto sink = engine_.sink();
  sink->OnStarted({});
  const TopLogprobs top(10, {99, -1.0f});
  sink->OnPromptLogprobs({1, std::vector<PromptLogprob>(kPromptTokens - 1, {-2.0f, top})});
  sink->OnComplete({});
  v1::GenerateResponse response;
  int next_position = 1;
  while (reader->Read(&response)) {
    if (!response.has_prompt_logprobs()) continue;
    EXPECT_EQ(response.prompt_logprobs().first_position(), next_position);
    EXPECT_LE(response.prompt_logprobs().logprobs_size(), kMaxPromptPieceTokens);
    next_position += response.prompt_logprobs().logprobs_size();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(next_position, kPromptTokens);
}

}  // namespace
}  // namespace selfsame::decoder
