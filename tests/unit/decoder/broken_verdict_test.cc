#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <string>

#include "tests/unit/decoder/speculation_testing.h"

namespace selfsame::decoder {
namespace {

using ::testing::HasSubstr;

// Every rule a verdict can break. None may change anything, and the right verdict still applies.
struct BrokenCase {
  std::string name;
  std::function<void(Verdict&)> breaks;
};

void PrintTo(const BrokenCase& broken, std::ostream* os) { *os << broken.name; }

class BrokenVerdictTest : public ::testing::TestWithParam<BrokenCase> {
 protected:
  static void ExpectRefused(Speculation& s, const Verdict& good) {
    Verdict bad = good;
    GetParam().breaks(bad);
    const int32_t committed = s.committed_length();
    const int32_t length = s.length();
    auto effect = s.ApplyVerdict(bad);
    ASSERT_FALSE(effect.ok());
    EXPECT_THAT(std::string(effect.status().message()), HasSubstr("protocol broken"));
    EXPECT_EQ(s.committed_length(), committed);
    EXPECT_EQ(s.length(), length);
    Apply(s, good);
  }
};

class BrokenOpeningTest : public BrokenVerdictTest {};
TEST_P(BrokenOpeningTest, IsRefused) {
  Speculation s = Make();
  s.NewSession(kSession);
  Append(s, {100, 101});
  ExpectRefused(s, Opening(s, 100));
}

INSTANTIATE_TEST_SUITE_P(
    Opening, BrokenOpeningTest,
    ::testing::Values(BrokenCase{"session", [](Verdict& v) { v.session_id = 99; }},
                      BrokenCase{"cached_negative", [](Verdict& v) { v.cached_tokens = -1; }},
                      BrokenCase{"cached_all",
                                 [](Verdict& v) { v.cached_tokens = v.committed_length - 1; }},
                      BrokenCase{"window", [](Verdict& v) { v.window_id = 1; }},
                      BrokenCase{"rollback", [](Verdict& v) { v.outcome = Outcome::kRollback; }},
                      BrokenCase{"discarded", [](Verdict& v) { v.outcome = Outcome::kDiscarded; }},
                      BrokenCase{"epoch", [](Verdict& v) { v.epoch = 1; }},
                      BrokenCase{"no_advance", [](Verdict& v) { v.committed_length -= 1; }},
                      BrokenCase{"two_tokens", [](Verdict& v) { v.committed_length += 1; }},
                      BrokenCase{"negative_length", [](Verdict& v) { v.committed_length = -5; }},
                      BrokenCase{"no_token", [](Verdict& v) { v.canonical_token.reset(); }},
                      BrokenCase{"token_too_large", [](Verdict& v) { v.canonical_token = kVocab; }},
                      BrokenCase{"token_negative", [](Verdict& v) { v.canonical_token = -1; }},
                      BrokenCase{"no_logprob", [](Verdict& v) { v.logprobs.clear(); }},
                      BrokenCase{"two_logprobs", [](Verdict& v) { v.logprobs = Logprobs(2); }},
                      BrokenCase{"nan", [](Verdict& v) { v.logprobs = {std::nanf("")}; }},
                      BrokenCase{"stop_without_end", [](Verdict& v) { v.canonical_token = kStop; }},
                      BrokenCase{"end_without_stop", [](Verdict& v) { v.end = End::kStopToken; }},
                      BrokenCase{"early_max_tokens", [](Verdict& v) { v.end = End::kMaxTokens; }},
                      BrokenCase{"early_context", [](Verdict& v) { v.end = End::kContextLimit; }}),
    ::testing::PrintToStringParamName());

class BrokenCommitTest : public BrokenVerdictTest {};
TEST_P(BrokenCommitTest, IsRefused) {
  Speculation s = Opened();
  Append(s, {101, 102, 103, 104, 105});
  Window first = Cut(s, 3);
  Cut(s, 1);
  ExpectRefused(s, Commit(s, first));
}

INSTANTIATE_TEST_SUITE_P(
    Commit, BrokenCommitTest,
    ::testing::Values(BrokenCase{"unknown_window", [](Verdict& v) { v.window_id = 9; }},
                      BrokenCase{"out_of_order", [](Verdict& v) { v.window_id = 2; }},
                      BrokenCase{"second_opening", [](Verdict& v) { v.window_id = 0; }},
                      BrokenCase{"epoch", [](Verdict& v) { v.epoch = 1; }},
                      BrokenCase{"discarded", [](Verdict& v) { v.outcome = Outcome::kDiscarded; }},
                      BrokenCase{"part_of_it", [](Verdict& v) { v.committed_length -= 1; }},
                      BrokenCase{"no_advance",
                                 [](Verdict& v) { v.committed_length = kPrompt + 1; }},
                      BrokenCase{"past_the_window", [](Verdict& v) { v.committed_length += 1; }},
                      BrokenCase{"negative", [](Verdict& v) { v.committed_length = -2147483647; }},
                      BrokenCase{"huge", [](Verdict& v) { v.committed_length = 2147483647; }},
                      BrokenCase{"token", [](Verdict& v) { v.canonical_token = 103; }},
                      BrokenCase{"logprobs", [](Verdict& v) { v.logprobs.pop_back(); }},
                      BrokenCase{"end", [](Verdict& v) { v.end = End::kMaxTokens; }}),
    ::testing::PrintToStringParamName());

class BrokenRollbackTest : public BrokenVerdictTest {};
TEST_P(BrokenRollbackTest, IsRefused) {
  Speculation s = Opened();
  Append(s, {101, kStop});
  ExpectRefused(s, Rollback(s, Cut(s, 3), 1, 500));
}

INSTANTIATE_TEST_SUITE_P(
    Rollback, BrokenRollbackTest,
    ::testing::Values(
        BrokenCase{"same_epoch", [](Verdict& v) { v.epoch = 0; }},
        BrokenCase{"epoch_skipped", [](Verdict& v) { v.epoch = 2; }},
        BrokenCase{"no_token", [](Verdict& v) { v.canonical_token.reset(); }},
        BrokenCase{"the_candidate", [](Verdict& v) { v.canonical_token = kStop; }},
        BrokenCase{"outside_vocabulary", [](Verdict& v) { v.canonical_token = kVocab; }},
        BrokenCase{"no_advance", [](Verdict& v) { v.committed_length = kPrompt + 1; }},
        BrokenCase{"past_the_window", [](Verdict& v) { v.committed_length += 1; }},
        BrokenCase{"logprobs", [](Verdict& v) { v.logprobs = Logprobs(3); }}),
    ::testing::PrintToStringParamName());

// What was asked for must come, and nothing else.
TEST(BrokenVerdictTest, AlternativesAndPromptLogprobsAreThoseAskedFor) {
  const TopLogprobs top = {{5, -0.5f}, {6, -1.0f}};
  Speculation s({.prompt_length = 3,
                 .max_tokens = 10,
                 .stop_token_ids = {},
                 .vocab_size = kVocab,
                 .max_inflight_windows = 4,
                 .top_logprobs = 2,
                 .prompt_logprobs = 1});
  s.NewSession(kSession);
  Append(s, {100, 101});
  Verdict good = Opening(s, 100);
  good.top_logprobs = {top};
  good.prompt_logprobs = {{-1.0f, {{7, -1.0f}}}, {-2.0f, {{8, -1.0f}}}};
  const float nan = std::nanf("");
  const std::vector<std::function<void(Verdict&)>> changes = {
      [](Verdict& v) { v.top_logprobs.clear(); },
      [&](Verdict& v) { v.top_logprobs.push_back(top); },
      [](Verdict& v) { v.top_logprobs[0].pop_back(); },
      [](Verdict& v) { v.top_logprobs[0][1].token_id = kVocab; },
      [](Verdict& v) { v.top_logprobs[0][1].token_id = -1; },
      [nan](Verdict& v) { v.top_logprobs[0][0].logprob = nan; },
      [](Verdict& v) { v.prompt_logprobs.clear(); },
      [](Verdict& v) { v.prompt_logprobs.pop_back(); },
      [nan](Verdict& v) { v.prompt_logprobs[1].logprob = nan; },
      [](Verdict& v) { v.prompt_logprobs[1].top.clear(); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    Verdict bad = good;
    changes[i](bad);
    EXPECT_FALSE(s.ApplyVerdict(bad).ok()) << i;
  }
  EXPECT_EQ(s.wanted_prompt_logprobs(), 1);
  auto effect = s.ApplyVerdict(good);
  ASSERT_TRUE(effect.ok()) << effect.status();
  EXPECT_EQ(effect->top_logprobs, good.top_logprobs);
  EXPECT_EQ(effect->prompt_logprobs, good.prompt_logprobs);

  // Once they are here, no session brings them again.
  EXPECT_EQ(s.wanted_prompt_logprobs(), std::nullopt);
  s.OnSessionLost();
  s.NewSession(kSession + 1);
  Verdict again = Opening(s, 101);
  again.top_logprobs = {top};
  again.prompt_logprobs = good.prompt_logprobs;
  EXPECT_FALSE(s.ApplyVerdict(again).ok());
  again.prompt_logprobs.clear();
  EXPECT_TRUE(s.ApplyVerdict(again).ok());
}

TEST(BrokenVerdictTest, ADecisionOnAStaleWindowIsRefused) {
  Speculation s = Opened();
  Append(s, {101, 102});
  Window first = Cut(s, 1);
  Window second = Cut(s, 1);
  Apply(s, Rollback(s, first, 0, 500));
  EXPECT_FALSE(s.ApplyVerdict(Commit(s, second)).ok());
  EXPECT_FALSE(s.ApplyVerdict(Rollback(s, second, 0, 500)).ok());
  Verdict wrong_epoch = Discarded(s, second);
  wrong_epoch.epoch = 0;
  EXPECT_FALSE(s.ApplyVerdict(wrong_epoch).ok());
  Verdict commits = Discarded(s, second);
  commits.logprobs = Logprobs(1);
  EXPECT_FALSE(s.ApplyVerdict(commits).ok());
  Apply(s, Discarded(s, second));
}

TEST(BrokenVerdictTest, CommittingPastAStopTokenIsRefused) {
  Speculation s = Opened();
  Append(s, {101, kStop});
  Window window = Cut(s, 64);
  EXPECT_FALSE(s.ApplyVerdict(Commit(s, window)).ok()) << "no end at a stop token";
  EXPECT_FALSE(s.ApplyVerdict(Commit(s, window, End::kStopToken, 1)).ok()) << "end before it";
  Apply(s, Commit(s, window, End::kStopToken));
  EXPECT_FALSE(s.ApplyVerdict(Commit(s, window)).ok()) << "after the end";
}

}  // namespace
}  // namespace selfsame::decoder
