#include "decoder/engine/speculation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/decoder/speculation_testing.h"

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

TEST(SpeculationTest, AnEffectSaysWhichCandidateWasDroppedFirst) {
  Speculation s = Opened();
  Append(s, {101, 102, 103, 104});
  const Window window = Cut(s, 3);
  EXPECT_EQ(Apply(s, Rollback(s, window, 1, 55)).first_dropped, kPrompt + 2);
  Append(s, {56});
  EXPECT_FALSE(Apply(s, Commit(s, Cut(s, 1))).first_dropped.has_value());
}

TEST(SpeculationTest, ResumedTokensAreCommitted) {
  Speculation s({.prompt_length = kPrompt,
                 .max_tokens = 4,
                 .stop_token_ids = {kStop},
                 .vocab_size = kVocab,
                 .max_inflight_windows = 1,
                 .resumed_tokens = {100, 101}});
  EXPECT_EQ(s.committed_length(), kPrompt + 2);
  EXPECT_EQ(s.candidate_count(), 0);
  EXPECT_EQ(s.committed_tokens().size(), 2u);
  s.NewSession(kSession);
  const SpeculationEffect effect = Apply(s, Opening(s, 102));
  EXPECT_EQ(effect.first_position, kPrompt + 2);
  Append(s, {103});
  EXPECT_TRUE(s.has_proposed_end()) << "resumed tokens count for max_tokens";
  EXPECT_EQ(s.counters().redecoded_tokens, 0);
  Apply(s, Commit(s, Cut(s, 1), End::kMaxTokens));
  EXPECT_TRUE(s.has_ended());
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

}  // namespace
}  // namespace selfsame::decoder
