// Choices, alternatives, the prompt's logprobs and echo, through both processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/model/model.h"
#include "tests/integration/canonical_answer.h"
#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

constexpr int kRequests = 6;
constexpr int kMaxTokens = 64;
constexpr int kContextLimit = 512;

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> decoder_flags,
                                      std::vector<std::string> verifier_flags,
                                      int verifier_count = 1) {
  const std::string limit = absl::StrCat("--context_limit=", kContextLimit);
  decoder_flags.push_back(limit);
  verifier_flags.push_back(limit);
  auto cluster = Cluster::Start({.model_dir = TrainedModelDir(),
                                 .decoder_flags = std::move(decoder_flags),
                                 .verifier_flags = std::move(verifier_flags),
                                 .verifier_count = verifier_count,
                                 .other_verifiers = {}});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

// Prompts of up to 120 tokens, so that prefill takes several chunks.
std::vector<v1::GenerateRequest> Requests() {
  auto requests = MakeVerseRequests(kRequests, kMaxTokens);
  for (int i = 0; i < kRequests; ++i) {
    v1::GenerateRequest& request = requests[static_cast<size_t>(i)];
    for (int repeat = 0; repeat < 2 * i; ++repeat) {
      request.mutable_prompt()->append(" and the LORD said unto them, ");
    }
    request.set_top_logprobs(i % 3 * 3);
    request.set_prompt_logprobs(i % 4);
    request.set_echo(i % 2 == 1);
  }
  return requests;
}

std::vector<int32_t> Tokenize(TestClient& client, const std::string& text) {
  v1::TokenizeRequest request;
  request.set_text(text);
  const auto response = client.Tokenize(request);
  EXPECT_TRUE(response.ok()) << response.status();
  return {response->token_ids().begin(), response->token_ids().end()};
}

void ExpectIsAnswer(const GenerateResult& result, const Answer& answer) {
  EXPECT_EQ(result.token_ids, answer.token_ids);
  ASSERT_EQ(result.logprob_bits.size(), answer.logprobs.size());
  for (size_t i = 0; i < answer.logprobs.size(); ++i) {
    EXPECT_EQ(result.logprob_bits[i], std::bit_cast<uint32_t>(answer.logprobs[i])) << i;
  }
  EXPECT_EQ(result.top_logprobs, answer.top_logprobs);
}

void ExpectWellFormed(const GenerateResult& result) {
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.violation, "");
  ASSERT_TRUE(result.complete.has_value());
}

TEST(OutputsTest, AreThoseOfTheCanonicalLoopInEveryShape) {
  const auto model = LoadCanonicalModel(kContextLimit, 1);
  const auto requests = Requests();
  std::vector<Answer> answers;
  struct Shape {
    int window_size;
    int verify_batch_size;
    int concurrency;
    int background;
  };
  int rollbacks = 0;
  for (const Shape& shape : {Shape{64, 8, 1, 0}, Shape{5, 2, 3, 2}, Shape{16, 1, 6, 0}}) {
    SCOPED_TRACE(absl::StrCat("window ", shape.window_size));
    const std::string window = absl::StrCat("--window_size=", shape.window_size);
    const auto cluster =
        StartCluster({window, "--max_batch_tokens=24", "--max_batch_size=12"},
                     {window, absl::StrCat("--verify_batch_size=", shape.verify_batch_size)});
    ASSERT_NE(cluster, nullptr);
    TestClient& client = cluster->client();
    const Background background(client, shape.background);
    const auto results = ServeAll(client, requests, ArrivalOrder(kRequests, 3), shape.concurrency);
    for (size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(results[i]));
      const auto prompt = Tokenize(client, requests[i].prompt());
      if (answers.size() == i) answers.push_back(CanonicalAnswer(*model, prompt, requests[i]));
      ExpectIsAnswer(results[i], answers[i]);
      EXPECT_EQ(results[i].prompt_logprobs, answers[i].prompt_logprobs);
      EXPECT_EQ(results[i].prompt_token_ids, requests[i].echo() ? prompt : std::vector<int32_t>());
      EXPECT_EQ(results[i].prompt_text, requests[i].echo() ? requests[i].prompt() : "");
      rollbacks += results[i].complete->rollbacks();
    }
  }
  EXPECT_GT(rollbacks, 0);
}

TEST(OutputsTest, ChoicesDifferAndEachIsTheSameWhateverTheirNumber) {
  const auto cluster = StartCluster({"--max_batch_size=16"}, {});
  ASSERT_NE(cluster, nullptr);
  TestClient& client = cluster->client();
  v1::GenerateRequest request = MakeVerseRequests(2, kMaxTokens)[1];
  ASSERT_GT(request.sampling().temperature(), 0.0f);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_top_logprobs(2);
  request.set_prompt_logprobs(1);
  const GenerateResult one = client.Generate(request);
  request.set_n(2);
  const GenerateResult two = client.Generate(request);
  request.set_n(4);
  const GenerateResult four = client.Generate(request);
  for (const GenerateResult* result : {&one, &two, &four}) {
    ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(*result));
    EXPECT_EQ(result->prompt_logprobs, one.prompt_logprobs);
    EXPECT_EQ(result->prompt_logprobs.size() + 1,
              static_cast<size_t>(result->started->prompt_tokens()));
  }
  EXPECT_TRUE(IsSameAnswer(two, one));
  EXPECT_TRUE(IsSameAnswer(four, one));
  ASSERT_EQ(four.other_choices.size(), 3u);
  EXPECT_TRUE(IsSameAnswer(four.other_choices[0], two.other_choices[0]));

  const auto model = LoadCanonicalModel(kContextLimit, 1);
  const auto prompt = Tokenize(client, request.prompt());
  std::set<std::vector<int32_t>> different = {four.token_ids};
  for (size_t i = 0; i < 3; ++i) {
    ExpectIsAnswer(four.other_choices[i],
                   CanonicalAnswer(*model, prompt, request, static_cast<int32_t>(i) + 1));
    EXPECT_TRUE(four.other_choices[i].prompt_logprobs.empty());
    different.insert(four.other_choices[i].token_ids);
  }
  EXPECT_EQ(different.size(), 4u);
}

TEST(OutputsTest, OrdinaryRequestsGetThemFromTheFastPath) {
  const auto cluster = StartCluster({"--max_batch_tokens=40", "--max_batch_size=8"}, {}, 0);
  ASSERT_NE(cluster, nullptr);
  TestClient& client = cluster->client();
  const auto model = LoadCanonicalModel(kContextLimit, 1);
  const auto requests = MakeOrdinary(Requests());
  const auto results = ServeAll(client, requests, ArrivalOrder(kRequests, 5), 3);
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(results[i]));
    const auto prompt = Tokenize(client, requests[i].prompt());
    const Answer answer = CanonicalAnswer(*model, prompt, requests[i]);
    ASSERT_EQ(results[i].prompt_logprobs.size(), answer.prompt_logprobs.size());
    for (size_t j = 0; j < answer.prompt_logprobs.size(); ++j) {
      EXPECT_NEAR(results[i].prompt_logprobs[j].logprob, answer.prompt_logprobs[j].logprob, 0.2f);
      EXPECT_EQ(results[i].prompt_logprobs[j].top.size(), answer.prompt_logprobs[j].top.size());
    }
    const size_t top_size = requests[i].top_logprobs() > 0 ? results[i].token_ids.size() : 0;
    ASSERT_EQ(results[i].top_logprobs.size(), top_size);
    for (const TopLogprobs& top : results[i].top_logprobs) {
      EXPECT_EQ(top.size(), static_cast<size_t>(requests[i].top_logprobs()));
    }
  }
  v1::GenerateRequest request = requests[1];
  request.set_n(3);
  const GenerateResult result = client.Generate(request);
  ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(result));
  EXPECT_NE(result.token_ids, result.other_choices[0].token_ids);
  EXPECT_NE(result.other_choices[0].token_ids, result.other_choices[1].token_ids);
}

TEST(OutputsTest, ChoicesAreQueuedTogetherOrNotAtAllAndCancelledTogether) {
  const auto cluster = StartCluster({"--max_batch_size=2", "--max_queue=6"}, {}, 0);
  ASSERT_NE(cluster, nullptr);
  TestClient& client = cluster->client();
  v1::GenerateRequest request = MakeOrdinary(MakeVerseRequests(1, 400))[0];
  request.mutable_stop()->set_ignore_eos(true);
  request.set_n(7);
  const GenerateResult refused = client.Generate(request);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted) << refused.status;
  EXPECT_TRUE(RetryAfterMsOf(refused.status).has_value());
  EXPECT_THAT(std::string(refused.status.message()), ::testing::HasSubstr("no room for 7"));
  request.set_n(6);
  CallOptions options;
  options.on_chunk = [](int tokens) { return tokens < 5; };
  EXPECT_EQ(client.Generate(request, options).status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(client.WaitUntilIdle());
}

TEST(OutputsTest, AFailoverChangesNoneOfThem) {
  const auto cluster = StartCluster({"--window_size=8"}, {"--window_size=8"}, 2);
  ASSERT_NE(cluster, nullptr);
  TestClient& client = cluster->client();
  auto requests = Requests();
  for (v1::GenerateRequest& request : requests) {
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_stop()->set_max_tokens(150);
    request.set_top_logprobs(2);
  }
  const auto reference = ServeAll(client, requests, ArrivalOrder(kRequests, 0), kRequests);
  bool is_killed = false;
  CallOptions options;
  options.on_chunk = [&](int tokens) {
    if (tokens > 20 && !is_killed) {
      is_killed = true;
      cluster->KillVerifier(0);
    }
    return true;
  };
  std::vector<GenerateResult> results(requests.size());
  std::vector<std::thread> others;
  for (size_t i = 1; i < requests.size(); ++i) {
    others.emplace_back([&, i] { results[i] = client.Generate(requests[i]); });
  }
  results[0] = client.Generate(requests[0], options);
  for (std::thread& other : others) other.join();
  EXPECT_TRUE(is_killed);
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(results[i]));
    EXPECT_TRUE(IsSameAnswer(results[i], reference[i])) << Describe(results[i]);
  }
}

}  // namespace
}  // namespace selfsame::testing
