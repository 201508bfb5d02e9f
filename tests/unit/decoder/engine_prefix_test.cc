// The prefix cache of the decoder: what is found in it changes no answer, and nothing leaks.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

class EnginePrefixTest : public CoreTest {
 protected:
  static GenerationRequest RequestOf(int index, int32_t prompt_length, int32_t max_tokens) {
    GenerationRequest request = TestRequest(index, max_tokens);
    uint32_t state = static_cast<uint32_t>(index) + 5;
    request.prompt_token_ids.clear();
    for (int32_t i = 0; i < prompt_length; ++i) {
      state = state * 1664525u + 1013904223u;
      request.prompt_token_ids.push_back(static_cast<int32_t>(3 + (state >> 8) % 500));
    }
    return request;
  }

  // Serves one request alone; how many of its prompt tokens were cached.
  int32_t Serve(const GenerationRequest& request) {
    auto sink = Submit(request);
    RunAll({sink});
    EXPECT_TRUE(sink->complete.has_value()) << sink->status;
    if (request.is_deterministic) ExpectCanonical(*sink, request);
    token_ids_ = sink->token_ids;
    return sink->complete->cached_prompt_tokens;
  }

  void ExpectAllFree(int32_t block_count) {
    ExpectNothingLeft();
    EXPECT_EQ(core_->stats().free_kv_blocks, block_count);
    EXPECT_EQ(core_->stats().kv_usage, 0.0);
  }

  std::vector<int32_t> token_ids_;  // of the request served last
};

TEST_F(EnginePrefixTest, ColdAndWarmAnswersAreCanonicalAtEveryEdge) {
  Create({});
  for (const int32_t prompt_length : {1, 15, 16, 17, 31, 32, 33, 70}) {
    SCOPED_TRACE(prompt_length);
    for (const int index : {2, 3}) {  // greedy and sampled
      const GenerationRequest request = RequestOf(index + 10 * prompt_length, prompt_length, 40);
      EXPECT_EQ(Serve(request), 0);
      EXPECT_EQ(Serve(request), (prompt_length - 1) / kKvBlockTokens * kKvBlockTokens);
    }
  }
  ExpectAllFree(200);
}

TEST_F(EnginePrefixTest, DeterministicAndOrdinaryRequestsFindEachOthersPrompts) {
  Create({});
  GenerationRequest request = RequestOf(4, 50, 20);
  EXPECT_EQ(Serve(request), 0);
  request.is_deterministic = false;
  EXPECT_EQ(Serve(request), 48);
  request = RequestOf(6, 50, 20);
  request.is_deterministic = false;
  EXPECT_EQ(Serve(request), 0);
  request.is_deterministic = true;
  EXPECT_EQ(Serve(request), 48);
}

// The rows that give them must run. Those of a deterministic request run on the verifier.
TEST_F(EnginePrefixTest, OrdinaryPromptLogprobsTakeNothingFromTheCache) {
  Create({});
  GenerationRequest request = RequestOf(4, 50, 20);
  EXPECT_EQ(Serve(request), 0);
  request.prompt_logprobs = 1;
  EXPECT_EQ(Serve(request), 48);
  request.is_deterministic = false;
  EXPECT_EQ(Serve(request), 0);
  request.prompt_logprobs.reset();
  EXPECT_EQ(Serve(request), 48);
}

TEST_F(EnginePrefixTest, TheNextTurnFindsTheOutputToo) {
  Create({});
  for (const bool is_deterministic : {true, false}) {
    GenerationRequest request = RequestOf(is_deterministic ? 8 : 12, 20, 60);
    request.stop_token_ids.clear();
    request.is_deterministic = is_deterministic;
    Serve(request);
    ASSERT_EQ(token_ids_.size(), 60u);
    std::vector<int32_t>& prompt = request.prompt_token_ids;
    prompt.insert(prompt.end(), token_ids_.begin(), token_ids_.end());
    prompt.insert(prompt.end(), {5, 6, 7});
    // The last of the 80 tokens was never the input of a row.
    EXPECT_EQ(Serve(request), 64);
  }
}

TEST_F(EnginePrefixTest, PreemptedRequestsComeBackThroughTheCache) {
  const int32_t block_count = BlocksFor(kTestContextLimit) + 2;
  Create({.kv_block_count = block_count});
  RunAndCompare(10, 90);
  // No prompt is another's, so all hits are those of preempted requests.
  EXPECT_GT(core_->stats().preemptions, 0);
  EXPECT_GT(core_->stats().prefix_hits, 0);
  EXPECT_LT(core_->stats().prefix_hits, core_->stats().prefix_queries);
  ExpectAllFree(block_count);
}

TEST_F(EnginePrefixTest, CancelledRequestsLeaveTheirPromptsBehindAndNothingElse) {
  Create({});
  for (int steps = 0; steps < 12; ++steps) {
    const GenerationRequest request = RequestOf(20 + steps, 60, 60);
    const uint64_t id = next_id_;
    auto sink = Submit(request);
    for (int i = 0; i < steps; ++i) {
      StepCore();
      verifiers_[0]->ProcessOne();
    }
    core_->Cancel(id);
    EXPECT_EQ(Serve(request), steps == 0 ? 0 : 48) << steps;
  }
  ExpectAllFree(200);
}

TEST_F(EnginePrefixTest, RequestsOfOnePromptSideBySideAreAllCanonical) {
  const int32_t block_count = BlocksFor(kTestContextLimit) + 6;
  Create({.kv_block_count = block_count});
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 12; ++i) {
    GenerationRequest request = TestRequest(i, 50);
    request.prompt_token_ids = RequestOf(3, 66 + i % 3, 1).prompt_token_ids;
    requests.push_back(request);
    sinks.push_back(Submit(request));
    StepCore();
  }
  RunAll(sinks);
  for (size_t i = 0; i < requests.size(); ++i) ExpectCanonical(*sinks[i], requests[i]);
  EXPECT_GT(core_->stats().prefix_hits, 0);
  ExpectAllFree(block_count);
}

TEST_F(EnginePrefixTest, RequestsThatArriveTogetherDoNotAllComputeTheirPrompt) {
  Create({});
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    GenerationRequest request = TestRequest(i, 20);
    request.prompt_token_ids = RequestOf(5, 4 * kTestMaxRows, 1).prompt_token_ids;
    request.is_deterministic = i % 2 == 0;
    requests.push_back(request);
    sinks.push_back(Submit(request));
  }
  RunAll(sinks);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(sinks[i]->complete.has_value()) << sinks[i]->status;
    if (requests[i].is_deterministic) ExpectCanonical(*sinks[i], requests[i]);
    const int32_t cached = sinks[i]->complete->cached_prompt_tokens;
    // The first two get rows at the same time.
    EXPECT_GT(cached, i < 2 ? -1 : 3 * kTestMaxRows - kKvBlockTokens);
  }
  ExpectAllFree(200);
}

TEST_F(EnginePrefixTest, WithoutTheCacheNothingIsFound) {
  Create({.enable_prefix_caching = false});
  const GenerationRequest request = RequestOf(4, 50, 20);
  EXPECT_EQ(Serve(request), 0);
  EXPECT_EQ(Serve(request), 0);
  EXPECT_EQ(core_->stats().prefix_queries, 0);
  EXPECT_EQ(core_->stats().cached_kv_blocks, 0);
}

}  // namespace
}  // namespace selfsame::decoder
