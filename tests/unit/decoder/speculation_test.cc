#include "decoder/engine/speculation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kPrompt = 10;
constexpr int32_t kStop = 2;
constexpr int32_t kVocab = 1000;
constexpr uint64_t kSession = 7;

Speculation Make(int32_t max_tokens = 100, int32_t max_inflight_windows = 4) {
  return Speculation({.prompt_length = kPrompt,
                      .max_tokens = max_tokens,
                      .stop_token_ids = {kStop},
                      .vocab_size = kVocab,
                      .max_inflight_windows = max_inflight_windows});
}

std::vector<float> Logprobs(int32_t count) {
  std::vector<float> logprobs(static_cast<size_t>(count));
  for (size_t i = 0; i < logprobs.size(); ++i) logprobs[i] = -0.25f * static_cast<float>(i + 1);
  return logprobs;
}

Verdict Opening(const Speculation& s, int32_t token, End end = End::kNone) {
  return {.session_id = s.session_id(),
          .window_id = 0,
          .outcome = Outcome::kCommit,
          .epoch = 0,
          .committed_length = s.committed_length() + 1,
          .canonical_token = token,
          .logprobs = Logprobs(1),
          .end = end};
}

Verdict Commit(const Speculation& s, const Window& window, End end = End::kNone,
               int32_t committed_of_window = -1) {
  const auto size = static_cast<int32_t>(window.candidate_ids.size());
  const int32_t count = committed_of_window < 0 ? size : committed_of_window;
  return {.session_id = s.session_id(),
          .window_id = window.window_id,
          .outcome = Outcome::kCommit,
          .epoch = window.epoch,
          .committed_length = window.first_position + count,
          .canonical_token = std::nullopt,
          .logprobs = Logprobs(count),
          .end = end};
}

// The candidate at `index` of the window is replaced by `token`.
Verdict Rollback(const Speculation& s, const Window& window, int32_t index, int32_t token,
                 End end = End::kNone) {
  return {.session_id = s.session_id(),
          .window_id = window.window_id,
          .outcome = Outcome::kRollback,
          .epoch = window.epoch + 1,
          .committed_length = window.first_position + index + 1,
          .canonical_token = token,
          .logprobs = Logprobs(index + 1),
          .end = end};
}

Verdict Discarded(const Speculation& s, const Window& window) {
  return {.session_id = s.session_id(),
          .window_id = window.window_id,
          .outcome = Outcome::kDiscarded,
          .epoch = s.epoch(),
          .committed_length = s.committed_length(),
          .canonical_token = std::nullopt,
          .logprobs = {},
          .end = End::kNone};
}

SpeculationEffect Apply(Speculation& s, const Verdict& verdict) {
  auto effect = s.ApplyVerdict(verdict);
  EXPECT_TRUE(effect.ok()) << effect.status();
  return effect.value_or(SpeculationEffect());
}

void Append(Speculation& s, std::initializer_list<int32_t> tokens) {
  for (int32_t token : tokens) s.AppendCandidate(token);
}

Window Cut(Speculation& s, int32_t max_size) {
  auto window = s.CutWindow(max_size);
  EXPECT_TRUE(window.has_value());
  return window.value_or(Window());
}

// A session with one committed token, 100.
Speculation Opened(int32_t max_tokens = 100, int32_t max_inflight_windows = 4) {
  Speculation s = Make(max_tokens, max_inflight_windows);
  s.NewSession(kSession);
  Apply(s, Opening(s, 100));
  return s;
}

TEST(SpeculationTest, NoWindowBeforeTheOpeningVerdict) {
  Speculation s = Make();
  Append(s, {100, 101});
  EXPECT_FALSE(s.CutWindow(64).has_value());
  s.NewSession(kSession);
  EXPECT_FALSE(s.CutWindow(64).has_value());
  Apply(s, Opening(s, 100));
  EXPECT_THAT(Cut(s, 64).candidate_ids, ElementsAre(101));
}

TEST(SpeculationTest, OpeningCommitsTheFirstTokenBeforeAnyCandidate) {
  Speculation s = Make();
  s.NewSession(kSession);
  SpeculationEffect effect = Apply(s, Opening(s, 100));
  EXPECT_EQ(effect.first_position, 10);
  EXPECT_THAT(effect.tokens, ElementsAre(100));
  EXPECT_THAT(effect.logprobs, ElementsAre(-0.25f));
  EXPECT_FALSE(effect.truncate_to.has_value());
  EXPECT_EQ(s.committed_length(), 11);
  EXPECT_EQ(s.length(), 11);
  EXPECT_EQ(s.counters().rollbacks, 0);
}

TEST(SpeculationTest, OpeningThatAgreesKeepsLaterCandidates) {
  Speculation s = Make();
  s.NewSession(kSession);
  Append(s, {100, 101, 102});
  SpeculationEffect effect = Apply(s, Opening(s, 100));
  EXPECT_EQ(effect.dropped, 0);
  EXPECT_FALSE(effect.truncate_to.has_value());
  EXPECT_EQ(s.length(), 13);
  Window window = Cut(s, 64);
  EXPECT_EQ(window.session_id, kSession);
  EXPECT_EQ(window.window_id, 1u);
  EXPECT_EQ(window.first_position, 11);
  EXPECT_THAT(window.candidate_ids, ElementsAre(101, 102));
}

TEST(SpeculationTest, OpeningThatDiffersDropsEverything) {
  Speculation s = Make();
  s.NewSession(kSession);
  Append(s, {100, 101, kStop});
  SpeculationEffect effect = Apply(s, Opening(s, 500));
  EXPECT_THAT(effect.tokens, ElementsAre(500));
  EXPECT_EQ(effect.truncate_to, 10);
  EXPECT_EQ(effect.dropped, 3);
  EXPECT_EQ(s.length(), 11);
  EXPECT_FALSE(s.has_proposed_end());
  EXPECT_TRUE(s.CanAppend());
  EXPECT_EQ(s.epoch(), 0u);
  EXPECT_EQ(s.counters().rollbacks, 1);
  EXPECT_EQ(s.counters().rolled_back_tokens, 3);
}

TEST(SpeculationTest, CommitTakesTheWholeWindowAndNothingMore) {
  Speculation s = Opened();
  Append(s, {101, 102, 103, 104});
  Window window = Cut(s, 3);
  EXPECT_EQ(s.unsubmitted_count(), 1);
  SpeculationEffect effect = Apply(s, Commit(s, window));
  EXPECT_EQ(effect.first_position, 11);
  EXPECT_THAT(effect.tokens, ElementsAre(101, 102, 103));
  EXPECT_EQ(effect.logprobs, Logprobs(3));
  EXPECT_FALSE(effect.truncate_to.has_value());
  EXPECT_EQ(s.committed_length(), 14);
  EXPECT_EQ(s.length(), 15);
  EXPECT_EQ(s.credit(), 4);
}

// The example of the design: candidates 10 to 17, mismatch at 13.
TEST(SpeculationTest, MismatchInTheMiddleReplacesTheCandidateAndTruncates) {
  Speculation s = Make();
  s.NewSession(kSession);
  Append(s, {100, 101, 102, 103, 104, 105, 106, 107});
  Apply(s, Opening(s, 100));
  Window window = Cut(s, 64);
  SpeculationEffect effect = Apply(s, Rollback(s, window, 2, 500));
  EXPECT_THAT(effect.tokens, ElementsAre(101, 102, 500));
  EXPECT_EQ(effect.truncate_to, 13);
  EXPECT_EQ(effect.dropped, 5);
  EXPECT_EQ(s.committed_length(), 14);
  EXPECT_EQ(s.length(), 14);
  EXPECT_THAT(s.committed_tokens(), ElementsAre(100, 101, 102, 500));
  EXPECT_EQ(s.epoch(), 1u);
}

TEST(SpeculationTest, MismatchAtTheFirstCandidate) {
  Speculation s = Opened();
  Append(s, {101, 102, 103});
  SpeculationEffect effect = Apply(s, Rollback(s, Cut(s, 64), 0, 500));
  EXPECT_THAT(effect.tokens, ElementsAre(500));
  EXPECT_EQ(effect.truncate_to, 11);
  EXPECT_EQ(effect.dropped, 3);
}

TEST(SpeculationTest, MismatchAtTheLastCandidate) {
  Speculation s = Opened();
  Append(s, {101, 102, 103});
  SpeculationEffect effect = Apply(s, Rollback(s, Cut(s, 64), 2, 500));
  EXPECT_THAT(effect.tokens, ElementsAre(101, 102, 500));
  EXPECT_EQ(effect.truncate_to, 13);
  EXPECT_EQ(effect.dropped, 1);
}

TEST(SpeculationTest, ConsecutiveRollbacksEachAdvance) {
  Speculation s = Opened();
  for (int i = 0; i < 5; ++i) {
    const int32_t before = s.committed_length();
    Append(s, {101, 102});
    Window window = Cut(s, 64);
    EXPECT_EQ(window.epoch, static_cast<uint32_t>(i));
    Apply(s, Rollback(s, window, 0, 500));
    EXPECT_EQ(s.committed_length(), before + 1);
  }
  EXPECT_EQ(s.counters().rollbacks, 5);
  EXPECT_EQ(s.counters().rolled_back_tokens, 10);
  // The second candidate of each round but the last was decoded again.
  EXPECT_EQ(s.counters().redecoded_tokens, 4);
}

TEST(SpeculationTest, RollbackDropsLaterWindowsAndTheirVerdictsGiveBackCreditOnly) {
  Speculation s = Opened(100, 3);
  Append(s, {101, 102, 103, 104, 105, 106, 107});
  Window first = Cut(s, 2);
  Window second = Cut(s, 2);
  Window third = Cut(s, 2);
  EXPECT_EQ(s.credit(), 0);
  EXPECT_FALSE(s.CutWindow(1).has_value());

  SpeculationEffect effect = Apply(s, Rollback(s, first, 1, 500));
  EXPECT_EQ(effect.dropped, 6);
  EXPECT_EQ(s.credit(), 1);
  Append(s, {201, 202});
  Window fourth = Cut(s, 1);
  EXPECT_EQ(fourth.epoch, 1u);
  EXPECT_EQ(fourth.window_id, 4u);
  EXPECT_EQ(fourth.first_position, 13);
  EXPECT_EQ(s.credit(), 0);

  for (const Window& stale : {second, third}) {
    effect = Apply(s, Discarded(s, stale));
    EXPECT_THAT(effect.tokens, IsEmpty());
    EXPECT_FALSE(effect.truncate_to.has_value());
    EXPECT_EQ(effect.end, End::kNone);
  }
  EXPECT_EQ(s.credit(), 2);
  EXPECT_EQ(s.committed_length(), 13);
  EXPECT_THAT(Apply(s, Commit(s, fourth)).tokens, ElementsAre(201));
  EXPECT_EQ(s.counters().windows, 4);
  EXPECT_EQ(s.counters().rolled_back_tokens, 6);
}

TEST(SpeculationTest, AStopTokenProposesTheEndAndItsWindowClosesWithIt) {
  Speculation s = Opened();
  Append(s, {101, kStop});
  EXPECT_TRUE(s.has_proposed_end());
  EXPECT_FALSE(s.CanAppend());
  EXPECT_FALSE(s.WantsCandidate(64));
  Window window = Cut(s, 64);
  SpeculationEffect effect = Apply(s, Commit(s, window, End::kStopToken));
  EXPECT_THAT(effect.tokens, ElementsAre(101, kStop));
  EXPECT_EQ(effect.end, End::kStopToken);
  EXPECT_TRUE(s.has_ended());
}

TEST(SpeculationTest, AProposedEndThatIsNotCanonicalDoesNotEnd) {
  Speculation s = Opened();
  Append(s, {101, kStop});
  SpeculationEffect effect = Apply(s, Rollback(s, Cut(s, 64), 1, 500));
  EXPECT_EQ(effect.end, End::kNone);
  EXPECT_FALSE(s.has_ended());
  EXPECT_TRUE(s.CanAppend());
}

TEST(SpeculationTest, ACanonicalEndInsideAWindowFinishesThere) {
  Speculation s = Opened();
  Append(s, {101, 102, 103, 104});
  Window window = Cut(s, 3);
  SpeculationEffect effect = Apply(s, Rollback(s, window, 1, kStop, End::kStopToken));
  EXPECT_THAT(effect.tokens, ElementsAre(101, kStop));
  EXPECT_EQ(effect.dropped, 3);
  EXPECT_TRUE(s.has_ended());
  EXPECT_EQ(s.length(), 13);
}

TEST(SpeculationTest, TheOpeningMayBeTheEnd) {
  Speculation s = Make();
  s.NewSession(kSession);
  Append(s, {100, 101});
  SpeculationEffect effect = Apply(s, Opening(s, kStop, End::kStopToken));
  EXPECT_EQ(effect.end, End::kStopToken);
  EXPECT_TRUE(s.has_ended());

  Speculation one = Make(/*max_tokens=*/1);
  one.NewSession(kSession);
  EXPECT_EQ(Apply(one, Opening(one, 100, End::kMaxTokens)).end, End::kMaxTokens);
}

TEST(SpeculationTest, MaxTokensProposesTheEnd) {
  Speculation s = Opened(/*max_tokens=*/3);
  Append(s, {101});
  EXPECT_FALSE(s.has_proposed_end());
  Append(s, {102});
  EXPECT_TRUE(s.has_proposed_end());
  EXPECT_EQ(Apply(s, Commit(s, Cut(s, 64), End::kMaxTokens)).end, End::kMaxTokens);
}

TEST(SpeculationTest, AnEndTheCallerProposedIsNoEndOnceCommitted) {
  Speculation s = Opened();
  s.AppendCandidate(101, /*is_end=*/true);
  EXPECT_TRUE(s.has_proposed_end());
  Apply(s, Commit(s, Cut(s, 64)));
  EXPECT_FALSE(s.has_ended());
  EXPECT_TRUE(s.CanAppend());
}

TEST(SpeculationTest, WithoutCreditOneWindowIsDecodedAheadAndNoMore) {
  Speculation s = Opened(100, 1);
  Append(s, {101, 102});
  Window window = Cut(s, 2);
  EXPECT_TRUE(s.WantsCandidate(2));
  Append(s, {103, 104});
  EXPECT_FALSE(s.WantsCandidate(2));
  Apply(s, Commit(s, window));
  EXPECT_FALSE(s.WantsCandidate(2));
  Cut(s, 2);
  EXPECT_TRUE(s.WantsCandidate(2));
}

TEST(SpeculationTest, BeforeTheOpeningDecodingRunsAheadByAllCredit) {
  Speculation s = Make(100, 2);
  s.NewSession(kSession);
  Append(s, {100, 101, 102});
  EXPECT_TRUE(s.WantsCandidate(2));
  Append(s, {103});
  EXPECT_FALSE(s.WantsCandidate(2));
}

TEST(SpeculationLossTest, WindowsInFlightAreSubmittedAgainInTheNewSession) {
  Speculation s = Opened(100, 2);
  Append(s, {101, 102, 103, 104});
  Cut(s, 2);
  Cut(s, 1);
  EXPECT_EQ(s.credit(), 0);
  s.OnSessionLost();
  EXPECT_EQ(s.credit(), 2);
  EXPECT_EQ(s.unsubmitted_count(), 4);
  EXPECT_FALSE(s.CutWindow(64).has_value());
  s.NewSession(kSession + 1);
  EXPECT_THAT(s.committed_tokens(), ElementsAre(100));
  SpeculationEffect effect = Apply(s, Opening(s, 101));
  EXPECT_EQ(effect.first_position, 11);
  Window window = Cut(s, 64);
  EXPECT_EQ(window.session_id, kSession + 1);
  EXPECT_EQ(window.window_id, 1u);
  EXPECT_EQ(window.epoch, 0u);
  EXPECT_EQ(window.first_position, 12);
  EXPECT_THAT(window.candidate_ids, ElementsAre(102, 103, 104));
}

TEST(SpeculationLossTest, BeforeTheOpeningVerdict) {
  Speculation s = Make();
  s.NewSession(kSession);
  Append(s, {100});
  s.OnSessionLost();
  s.NewSession(kSession + 1);
  EXPECT_THAT(Apply(s, Opening(s, 100)).tokens, ElementsAre(100));
}

TEST(SpeculationLossTest, AfterARollbackWithStaleWindowsInFlight) {
  Speculation s = Opened();
  Append(s, {101, 102, 103});
  Window first = Cut(s, 1);
  Cut(s, 1);
  Apply(s, Rollback(s, first, 0, 500));
  s.OnSessionLost();
  EXPECT_EQ(s.epoch(), 0u);
  EXPECT_EQ(s.credit(), 4);
  EXPECT_EQ(s.candidate_count(), 0);
  s.NewSession(kSession + 1);
  Append(s, {201, 202});
  Apply(s, Opening(s, 201));
  EXPECT_EQ(Cut(s, 64).first_position, 13);
}

TEST(SpeculationLossTest, AProposedEndSurvivesAndMayBeTheOpening) {
  Speculation s = Opened();
  Append(s, {kStop});
  Cut(s, 64);
  s.OnSessionLost();
  EXPECT_TRUE(s.has_proposed_end());
  s.NewSession(kSession + 1);
  EXPECT_EQ(Apply(s, Opening(s, kStop, End::kStopToken)).end, End::kStopToken);
}

TEST(SpeculationLossTest, VerdictsOfTheOldSessionAreRefused) {
  Speculation s = Opened();
  Append(s, {101});
  Verdict late = Commit(s, Cut(s, 1));
  s.OnSessionLost();
  EXPECT_FALSE(s.ApplyVerdict(late).ok());
  s.NewSession(kSession + 1);
  EXPECT_FALSE(s.ApplyVerdict(late).ok());
}

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
