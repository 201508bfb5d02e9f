// What a request may ask for beside its tokens: alternatives, the prompt's logprobs, other choices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

class OutputsTest : public CoreTest {
 protected:
  static GenerationRequest Wanting(GenerationRequest request, int32_t top, int32_t prompt_top) {
    request.top_logprobs = top;
    request.prompt_logprobs = prompt_top;
    return request;
  }

  static GenerationRequest Ordinary(GenerationRequest request) {
    request.is_deterministic = false;
    return request;
  }

  static void ExpectCanonicalOutputs(const RecordingSink& sink, const GenerationRequest& request) {
    ExpectCanonical(sink, request);
    const TinyWorld::Expected expected = TinyWorld::Get().Answer(request);
    EXPECT_EQ(sink.top_logprobs, expected.top_logprobs);
    EXPECT_EQ(sink.prompt_logprobs, expected.prompt_logprobs);
  }
};

TEST_F(OutputsTest, DeterministicAlternativesAreTheVerifiersThroughRollbacks) {
  Create({});
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 8; ++i) requests.push_back(Wanting(TestRequest(i, 60), i % 3 * 2, i % 4));
  for (const GenerationRequest& request : requests) sinks.push_back(Submit(request));
  RunAll(sinks);
  for (size_t i = 0; i < sinks.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectCanonicalOutputs(*sinks[i], requests[i]);
    AddUp(*sinks[i]);
  }
  EXPECT_GT(rollbacks_, 0);
  ExpectNothingLeft();
}

TEST_F(OutputsTest, WhatWasDeliveredIsNotAskedForAgainAfterAFailover) {
  Create({.fingerprints = {"F", "F"}});
  const GenerationRequest request = Wanting(TestRequest(5, 80), 3, 2);
  const auto sink = Submit(request);
  RunUntil([&] { return sink->token_ids.size() > 10; });
  const size_t first = verifiers_[0]->openings.empty() ? 1 : 0;
  verifiers_[first]->Disconnect();
  RunAll({sink});
  ExpectCanonicalOutputs(*sink, request);
  ASSERT_EQ(verifiers_[1 - first]->openings.size(), 1u);
  const SessionOpening& reopened = verifiers_[1 - first]->openings.front();
  EXPECT_FALSE(reopened.committed_token_ids.empty());
  EXPECT_FALSE(reopened.prompt_logprobs.has_value());
  EXPECT_EQ(reopened.top_logprobs, 3);
}

TEST_F(OutputsTest, AVerifierLostBeforeTheOpeningVerdictIsAskedAnew) {
  Create({.fingerprints = {"F", "F"}});
  const GenerationRequest request = Wanting(TestRequest(5, 20), 0, 1);
  const auto sink = Submit(request);
  while (core_->stats().sessions == 0) StepCore();
  for (auto& verifier : verifiers_) {
    verifier->Disconnect();
    verifier->Connect();
  }
  RunAll({sink});
  ExpectCanonicalOutputs(*sink, request);
}

TEST_F(OutputsTest, ChoicesHaveNoiseOfTheirOwnAndTheirOwnCanonicalAnswer) {
  Create({});
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int32_t choice = 0; choice < 4; ++choice) {
    requests.push_back(TestRequest(1, 40));
    requests.back().choice_index = choice;
  }
  for (const GenerationRequest& request : requests) sinks.push_back(Submit(request));
  RunAll(sinks);
  for (size_t i = 0; i < sinks.size(); ++i) {
    ExpectCanonicalOutputs(*sinks[i], requests[i]);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(sinks[i]->token_ids, sinks[j]->token_ids);
  }
}

TEST_F(OutputsTest, ChoicesOfOneCallHaveOneFingerprint) {
  Create({.fingerprints = {"F", "G"}});
  const auto group = std::make_shared<ChoiceGroup>();
  std::vector<std::shared_ptr<RecordingSink>> grouped;
  std::vector<std::shared_ptr<RecordingSink>> alone;
  for (const bool is_grouped : {false, true}) {
    for (int32_t choice = 0; choice < 6; ++choice) {
      GenerationRequest request = TestRequest(1, 20);
      request.choice_index = choice;
      if (is_grouped) request.group = group;
      (is_grouped ? grouped : alone).push_back(Submit(request));
    }
  }
  RunAll(grouped);
  RunAll(alone);
  std::vector<int> counts(2, 0);
  for (const auto& sink : grouped) {
    ASSERT_TRUE(sink->complete.has_value()) << sink->status;
    EXPECT_EQ(sink->complete->fingerprint, group->fingerprint);
  }
  for (const auto& sink : alone) ++counts[sink->complete->fingerprint == "F" ? 0 : 1];
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[1], 0);
}

// The fast path gives its own, and the KV they are made from does not matter: chunks, preemption.
TEST_F(OutputsTest, OrdinaryPromptLogprobsComeOnceAndDoNotDependOnChunks) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(Ordinary(Wanting(TestRequest(i, 30), i % 2 * 3, i % 3)));
  }
  std::vector<std::vector<PromptLogprob>> alone;
  for (const GenerationRequest& request : requests) {
    Create({});
    const auto sink = Submit(request);
    RunAll({sink});
    ASSERT_TRUE(sink->complete.has_value()) << sink->status;
    EXPECT_EQ(sink->prompt_logprobs.size() + 1, request.prompt_token_ids.size());
    EXPECT_EQ(sink->top_logprobs.size(), request.top_logprobs > 0 ? sink->token_ids.size() : 0u);
    for (size_t i = 0; i < sink->top_logprobs.size(); ++i) {
      ASSERT_EQ(sink->top_logprobs[i].size(), 3u);
      EXPECT_GE(sink->top_logprobs[i].front().logprob, sink->logprobs[i]);
    }
    alone.push_back(sink->prompt_logprobs);
  }
  // Few logit rows and little memory.
  Create({.kv_block_count = kTestContextLimit / 16 + 3});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const GenerationRequest& request : requests) sinks.push_back(Submit(request));
  RunAll(sinks);
  EXPECT_GT(core_->stats().preemptions, 0);
  int pieces = 0;
  for (size_t i = 0; i < sinks.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(sinks[i]->complete.has_value()) << sinks[i]->status;
    pieces = std::max(pieces, sinks[i]->prompt_piece_count);
    ASSERT_EQ(sinks[i]->prompt_logprobs.size(), alone[i].size());
    for (size_t j = 0; j < alone[i].size(); ++j) {
      // The fast path's kernels may depend on the number of rows.
      EXPECT_NEAR(sinks[i]->prompt_logprobs[j].logprob, alone[i][j].logprob, 0.1f);
      EXPECT_EQ(sinks[i]->prompt_logprobs[j].top.size(), alone[i][j].top.size());
    }
  }
  EXPECT_GT(pieces, 1);
  ExpectNothingLeft();
}

}  // namespace
}  // namespace selfsame::decoder
