// Requests that edit logits: penalties, logit bias, min-p, min_tokens.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/kv/sequence_state.h"
#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

GenerationRequest EditingRequest(int index, int32_t max_tokens) {
  GenerationRequest request = TestRequest(index, max_tokens);
  request.min_p = index % 4 == 1 ? 0.02f : 0.0f;
  LogitRules& rules = request.logit_rules;
  if (index % 3 != 0) rules.repetition_penalty = 1.1f + 0.1f * static_cast<float>(index % 5);
  if (index % 3 != 1) rules.presence_penalty = 0.5f - 0.2f * static_cast<float>(index % 4);
  if (index % 3 != 2) rules.frequency_penalty = 0.15f;
  if (index % 2 == 0) rules.logit_bias = {{5, 1.5f}, {70, -100.0f}};
  if (index % 4 == 0) {
    // The answer would end at once.
    rules.logit_bias.insert(rules.logit_bias.begin(), {kTestEos, 20.0f});
    rules.min_tokens = max_tokens / 2;
  }
  return request;
}

class LogitRulesCoreTest : public CoreTest {
 protected:
  std::vector<std::shared_ptr<RecordingSink>> SubmitEditing(int count, int32_t max_tokens) {
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int i = 0; i < count; ++i) sinks.push_back(Submit(EditingRequest(i, max_tokens)));
    return sinks;
  }

  void ExpectAllCanonical(const std::vector<std::shared_ptr<RecordingSink>>& sinks,
                          int32_t max_tokens) {
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectCanonical(*sinks[i], EditingRequest(static_cast<int>(i), max_tokens));
      AddUp(*sinks[i]);
    }
  }
};

TEST_F(LogitRulesCoreTest, TheRulesChangeTheAnswer) {
  int changed = 0;
  for (int i = 0; i < 8; ++i) {
    const auto plain = TinyWorld::Get().Answer(TestRequest(i, 60)).token_ids;
    changed += TinyWorld::Get().Answer(EditingRequest(i, 60)).token_ids != plain ? 1 : 0;
  }
  EXPECT_GE(changed, 6);
}

TEST_F(LogitRulesCoreTest, TheAnswerDoesNotDependOnWhereWindowsAreCut) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Create({.window_size = 32,
            .seed = seed,
            .policy = std::make_unique<RandomWindowPolicy>(seed, 32)});
    const auto sinks = SubmitEditing(8, 50);
    RunAll(sinks);
    ExpectAllCanonical(sinks, 50);
    ExpectNothingLeft();
  }
  EXPECT_GT(rollbacks_, 0);
}

TEST_F(LogitRulesCoreTest, TheAnswerSurvivesPreemption) {
  Create({.kv_block_count = BlocksFor(kTestContextLimit) + 2});
  const auto sinks = SubmitEditing(10, 90);
  RunAll(sinks);
  ExpectAllCanonical(sinks, 90);
  EXPECT_GT(core_->stats().preemptions, 0);
}

TEST_F(LogitRulesCoreTest, TheAnswerSurvivesTheLossOfVerifiers) {
  Create({.window_size = 8});
  const auto sinks = SubmitEditing(6, 60);
  int losses = 0;
  RunUntil([&] {
    if (losses < 25 && Below(30) == 0) {
      verifiers_[0]->Disconnect();
      for (uint32_t i = Below(4); i > 0; --i) StepCore();
      verifiers_[0]->Connect();
      ++losses;
    }
    return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->is_done(); });
  });
  EXPECT_GT(losses, 5);
  ExpectAllCanonical(sinks, 60);
}

// Ordinary tokens are the fast path's own, so only what holds for any of them can be said.
TEST_F(LogitRulesCoreTest, OrdinaryRequestsHaveTheirRulesToo) {
  Create({});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request = TestRequest(i, 40);
    request.is_deterministic = false;
    for (int32_t& token_id : request.prompt_token_ids) token_id = std::max(token_id, 12);
    request.logit_rules.logit_bias = {{kTestEos, 100.0f}, {9, 100.0f}, {11, 60.0f}};
    request.logit_rules.repetition_penalty = 100.0f;
    request.logit_rules.min_tokens = 4;
    sinks.push_back(Submit(request));
  }
  RunAll(sinks);
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->complete.has_value()) << sink->status;
    // The biases outweigh every logit, and the penalty undoes that of a token that is chosen; end
    // of sequence is free after four tokens.
    ASSERT_EQ(sink->token_ids.size(), 5u);
    EXPECT_EQ(sink->token_ids[0], 9);
    EXPECT_EQ(sink->token_ids[1], 11);
    EXPECT_EQ(sink->token_ids[4], kTestEos);
  }
}

TEST_F(LogitRulesCoreTest, StopStringsCountAfterMinTokensOnly) {
  int checked = 0;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request = TestRequest(i, 60);
    const std::string text = TinyWorld::Get().Answer(request).text;
    const size_t early = text.find_first_of("abcdefghijklmnopqrstuvwxyz");
    if (early == std::string::npos) continue;
    request.stop_strings = {text.substr(early, 1)};
    request.logit_rules.min_tokens = 40;
    Create({.window_size = 5});
    auto sink = Submit(request);
    RunAll({sink});
    ExpectCanonical(*sink, request);
    EXPECT_GE(sink->token_ids.size(), 40u);
    ++checked;
  }
  EXPECT_GT(checked, 2);
}

}  // namespace
}  // namespace selfsame::decoder
