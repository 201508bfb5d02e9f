#include "verifier/engine/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace selfsame::verifier {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kStop = 99;

EndRules Rules() {
  return {.prompt_length = 10, .max_tokens = 100, .context_limit = 1000, .stop_token_ids = {kStop}};
}

// The logprob of token t is -t / 8.
std::vector<SampledToken> Canonical(const std::vector<int32_t>& token_ids) {
  std::vector<SampledToken> canonical;
  for (const int32_t id : token_ids) canonical.push_back({id, static_cast<float>(-id) / 8.0f});
  return canonical;
}

WindowDecision Decide(const std::vector<int32_t>& candidates, const std::vector<int32_t>& canonical,
                      const EndRules& rules = Rules(), int32_t committed_length = 10) {
  return DecideWindow(rules, committed_length, candidates, Canonical(canonical));
}

TEST(DecideWindow, FullMatchCommitsExactlyTheCandidates) {
  const WindowDecision decision = Decide({1, 2, 3}, {1, 2, 3});
  EXPECT_EQ(decision.outcome, Outcome::kCommit);
  EXPECT_THAT(decision.committed, ElementsAre(1, 2, 3));
  EXPECT_THAT(decision.logprobs, ElementsAre(-1 / 8.0f, -2 / 8.0f, -3 / 8.0f));
  EXPECT_EQ(decision.end, End::kNone);
}

TEST(DecideWindow, MismatchAtTheFirstCandidateCommitsOneCanonicalToken) {
  const WindowDecision decision = Decide({1, 2, 3}, {7, 8, 9});
  EXPECT_EQ(decision.outcome, Outcome::kRollback);
  EXPECT_THAT(decision.committed, ElementsAre(7));
  EXPECT_THAT(decision.logprobs, ElementsAre(-7 / 8.0f));
}

TEST(DecideWindow, MismatchInTheMiddleKeepsWhatCameBefore) {
  const WindowDecision decision = Decide({1, 2, 3}, {1, 7, 3});
  EXPECT_EQ(decision.outcome, Outcome::kRollback);
  EXPECT_THAT(decision.committed, ElementsAre(1, 7));
}

TEST(DecideWindow, MismatchAtTheLastCandidateIsARollback) {
  const WindowDecision decision = Decide({1, 2, 3}, {1, 2, 7});
  EXPECT_EQ(decision.outcome, Outcome::kRollback);
  EXPECT_THAT(decision.committed, ElementsAre(1, 2, 7));
}

TEST(DecideWindow, CanonicalEndAmongMatchingCandidatesDropsLaterOnes) {
  const WindowDecision decision = Decide({1, kStop, 3}, {1, kStop, 4});
  EXPECT_EQ(decision.outcome, Outcome::kCommit);
  EXPECT_THAT(decision.committed, ElementsAre(1, kStop));
  EXPECT_EQ(decision.end, End::kStopToken);
}

TEST(DecideWindow, CanonicalEndInAMismatchsPlaceRollsBackAndEnds) {
  const WindowDecision decision = Decide({1, 2, 3}, {1, kStop, 3});
  EXPECT_EQ(decision.outcome, Outcome::kRollback);
  EXPECT_THAT(decision.committed, ElementsAre(1, kStop));
  EXPECT_EQ(decision.end, End::kStopToken);
}

TEST(DecideWindow, ProposedEndThatIsNotCanonicalGoesOn) {
  const WindowDecision decision = Decide({1, 2, kStop}, {1, 2, 3});
  EXPECT_EQ(decision.outcome, Outcome::kRollback);
  EXPECT_THAT(decision.committed, ElementsAre(1, 2, 3));
  EXPECT_EQ(decision.end, End::kNone);
}

TEST(DecideWindow, NothingIsCommittedPastMaxTokens) {
  EndRules rules = Rules();
  rules.max_tokens = 2;
  const WindowDecision decision = Decide({1, 2, 3}, {1, 2}, rules);
  EXPECT_EQ(decision.outcome, Outcome::kCommit);
  EXPECT_THAT(decision.committed, ElementsAre(1, 2));
  EXPECT_EQ(decision.end, End::kMaxTokens);
}

TEST(DecideWindow, NothingIsCommittedPastTheContextLimit) {
  EndRules rules = Rules();
  rules.context_limit = 11;
  const WindowDecision decision = Decide({1, 2, 3}, {1}, rules);
  EXPECT_THAT(decision.committed, ElementsAre(1));
  EXPECT_EQ(decision.end, End::kContextLimit);
}

TEST(DecideWindow, MismatchAtMaxTokensRollsBackAndEnds) {
  EndRules rules = Rules();
  rules.max_tokens = 2;
  const WindowDecision decision = Decide({1, 2}, {1, 5}, rules);
  EXPECT_EQ(decision.outcome, Outcome::kRollback);
  EXPECT_EQ(decision.end, End::kMaxTokens);
}

TEST(EndRules, AStopTokenComesBeforeMaxTokensAndThatBeforeTheContextLimit) {
  const EndRules rules{
      .prompt_length = 4, .max_tokens = 6, .context_limit = 10, .stop_token_ids = {kStop}};
  EXPECT_EQ(rules.EndAt(kStop, 10), End::kStopToken);
  EXPECT_EQ(rules.EndAt(1, 10), End::kMaxTokens);
  EXPECT_EQ(rules.EndAt(1, 9), End::kNone);
  const EndRules longer{
      .prompt_length = 4, .max_tokens = 7, .context_limit = 10, .stop_token_ids = {}};
  EXPECT_EQ(longer.EndAt(1, 10), End::kContextLimit);
  EXPECT_EQ(longer.longest_length(), 10);
  EXPECT_EQ(rules.longest_length(), 10);
}

TEST(EndRules, HugeMaxTokensDoesNotOverflow) {
  const EndRules rules{.prompt_length = 2000000000,
                       .max_tokens = 2000000000,
                       .context_limit = 2100000000,
                       .stop_token_ids = {}};
  EXPECT_EQ(rules.longest_length(), 2100000000);
}

}  // namespace
}  // namespace selfsame::verifier
