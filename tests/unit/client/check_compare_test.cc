#include "decoder/client/check_compare.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace selfsame::client {
namespace {

TEST(CheckCompareTest, EqualAnswersDoNotDiffer) {
  EXPECT_FALSE(FindDifference(MakeAnswer(1), MakeAnswer(1)).has_value());
}

TEST(CheckCompareTest, FindsTheFirstTokenThatDiffers) {
  Answer changed = MakeAnswer(1);
  changed.token_ids[5] = 7;
  changed.token_ids[6] = 7;
  const auto difference = FindDifference(MakeAnswer(1), changed);
  ASSERT_TRUE(difference.has_value());
  EXPECT_TRUE(difference->tokens);
  EXPECT_FALSE(difference->logprobs);
  EXPECT_EQ(difference->position, 5u);
}

TEST(CheckCompareTest, ALastBitOfALogprobIsADifferenceEvenWhereTokensAgree) {
  Answer changed = MakeAnswer(1);
  changed.logprobs[3] = std::nextafter(changed.logprobs[3], 0.0f);
  const auto difference = FindDifference(MakeAnswer(1), changed);
  ASSERT_TRUE(difference.has_value());
  EXPECT_FALSE(difference->tokens);
  EXPECT_TRUE(difference->logprobs);
  EXPECT_EQ(difference->position, 3u);
}

TEST(CheckCompareTest, LogprobsAreComparedAsBitsNotAsNumbers) {
  Answer zero = MakeAnswer(1);
  Answer negative_zero = zero;
  zero.logprobs[0] = 0.0f;
  negative_zero.logprobs[0] = -0.0f;
  EXPECT_TRUE(FindDifference(zero, negative_zero).has_value());

  Answer nan = zero;
  nan.logprobs[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(FindDifference(nan, nan).has_value());
}

TEST(CheckCompareTest, AlternativesAreComparedWhereBothAnswersHaveThem) {
  Answer expected = MakeAnswer(1);
  for (size_t i = 0; i < expected.token_ids.size(); ++i) {
    expected.top_logprobs.push_back({{expected.token_ids[i], expected.logprobs[i]}, {9, -5.0f}});
  }
  EXPECT_FALSE(FindDifference(expected, expected).has_value());
  EXPECT_FALSE(FindDifference(expected, MakeAnswer(1)).has_value());
  for (const TokenLogprob& changed : {TokenLogprob{8, -5.0f}, TokenLogprob{9, -5.0000005f}}) {
    Answer actual = expected;
    actual.top_logprobs[4].back() = changed;
    const auto difference = FindDifference(expected, actual);
    ASSERT_TRUE(difference.has_value());
    EXPECT_TRUE(difference->logprobs);
    EXPECT_FALSE(difference->tokens);
    EXPECT_EQ(difference->position, 4u);
  }
}

TEST(CheckCompareTest, LogprobsOfThePromptCount) {
  Answer expected = MakeAnswer(1);
  expected.prompt_logprobs = {{-1.0f, {{3, -0.5f}}}, {-2.0f, {{4, -0.25f}}}};
  EXPECT_FALSE(FindDifference(expected, expected).has_value());
  Answer logprob = expected;
  logprob.prompt_logprobs[1].logprob = std::nextafter(-2.0f, 0.0f);
  Answer alternative = expected;
  alternative.prompt_logprobs[0].top[0].token_id = 9;
  for (const Answer& changed : {logprob, alternative, MakeAnswer(1)}) {
    const auto difference = FindDifference(expected, changed);
    ASSERT_TRUE(difference.has_value());
    EXPECT_TRUE(difference->logprobs);
    EXPECT_FALSE(difference->tokens);
    EXPECT_EQ(difference->position, 0u);
  }
}

TEST(CheckCompareTest, APrefixDiffersAtItsEnd) {
  for (const bool swapped : {false, true}) {
    const Answer a = MakeAnswer(1, swapped ? 8 : 6);
    const Answer b = MakeAnswer(1, swapped ? 6 : 8);
    const auto difference = FindDifference(a, b);
    ASSERT_TRUE(difference.has_value());
    EXPECT_TRUE(difference->tokens);
    EXPECT_EQ(difference->position, 6u);
  }
}

TEST(CheckCompareTest, FinishReasonStopAndTextCount) {
  Answer reason = MakeAnswer(1);
  reason.finish_reason = FinishReason::kStop;
  Answer stop = MakeAnswer(1);
  stop.stop_string = "END";
  Answer text = MakeAnswer(1);
  text.text = "other";
  for (const Answer& changed : {reason, stop, text}) {
    const auto difference = FindDifference(MakeAnswer(1), changed);
    ASSERT_TRUE(difference.has_value());
    EXPECT_TRUE(difference->finish);
    EXPECT_FALSE(difference->tokens);
    EXPECT_EQ(difference->position, 8u);
  }
}

}  // namespace
}  // namespace selfsame::client
