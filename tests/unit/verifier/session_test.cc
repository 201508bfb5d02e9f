#include "verifier/engine/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"
#include "common/limits.h"
#include "tests/testing/naive_edits.h"

namespace selfsame::verifier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kStop = 99;
constexpr SteadyTime kNow{};

SessionOpening Opening() {
  SessionOpening opening;
  opening.session_id = 5;
  opening.prompt_token_ids = {1, 2, 3};
  opening.max_tokens = 50;
  opening.stop_token_ids = {kStop};
  return opening;
}

// Prompt of 3, committed length 4 after the opening verdict.
Session OpenSession(SessionOpening opening = Opening(), int32_t context_limit = 100) {
  Session session(std::move(opening), context_limit, kNow);
  session.Open({.token_id = 10, .logprob = -0.5f});
  return session;
}

Window MakeWindow(uint64_t window_id, int32_t first_position, std::vector<int32_t> candidates,
                  uint32_t epoch = 0) {
  return {.session_id = 5,
          .epoch = epoch,
          .window_id = window_id,
          .first_position = first_position,
          .candidate_ids = std::move(candidates)};
}

void Accept(Session& session, Window window) {
  const auto verdict = session.AddWindow(std::move(window), kNow);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  ASSERT_FALSE(verdict->has_value());
}

std::vector<SampledToken> Canonical(const std::vector<int32_t>& token_ids) {
  std::vector<SampledToken> canonical;
  for (const int32_t id : token_ids) canonical.push_back({id, -1.0f});
  return canonical;
}

TEST(Session, OpeningVerdictCommitsOneCanonicalToken) {
  Session session(Opening(), 100, kNow);
  EXPECT_TRUE(session.has_work());
  const Verdict verdict = session.Open({.token_id = 10, .logprob = -0.5f});
  EXPECT_EQ(verdict.session_id, 5u);
  EXPECT_EQ(verdict.window_id, 0u);
  EXPECT_EQ(verdict.outcome, Outcome::kCommit);
  EXPECT_EQ(verdict.epoch, 0u);
  EXPECT_EQ(verdict.committed_length, 4);
  EXPECT_EQ(verdict.canonical_token, 10);
  EXPECT_THAT(verdict.logprobs, ElementsAre(-0.5f));
  EXPECT_EQ(verdict.end, End::kNone);
  EXPECT_FALSE(session.has_work());
}

TEST(Session, CommittedTokensCountTowardsMaxTokens) {
  SessionOpening opening = Opening();
  opening.committed_token_ids = {20, 21};
  opening.max_tokens = 3;
  Session session(std::move(opening), 100, kNow);
  EXPECT_EQ(session.TokenAt(4), 21);
  const Verdict verdict = session.Open({.token_id = 10, .logprob = 0});
  EXPECT_EQ(verdict.committed_length, 6);
  EXPECT_EQ(verdict.end, End::kMaxTokens);
}

TEST(Session, OpeningVerdictMayBeAnEnd) {
  Session session(Opening(), 100, kNow);
  EXPECT_EQ(session.Open({.token_id = kStop, .logprob = 0}).end, End::kStopToken);
  const auto verdict = session.AddWindow(MakeWindow(1, 4, {1}), kNow);
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ((*verdict)->outcome, Outcome::kDiscarded);
}

TEST(Session, ContiguousWindowsAreDecidedInOrder) {
  Session session = OpenSession();
  Accept(session, MakeWindow(1, 4, {11, 12}));
  Accept(session, MakeWindow(2, 6, {13}));
  EXPECT_EQ(session.TokenAt(3), 10);
  EXPECT_EQ(session.TokenAt(5), 12);
  EXPECT_EQ(session.TokenAt(6), 13);
  const auto verdicts = session.Decide(2, Canonical({11, 12, 13}), DecideWindow);
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].window_id, 1u);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kCommit);
  EXPECT_EQ(verdicts[0].committed_length, 6);
  EXPECT_FALSE(verdicts[0].canonical_token.has_value());
  EXPECT_EQ(verdicts[1].window_id, 2u);
  EXPECT_EQ(verdicts[1].committed_length, 7);
  EXPECT_FALSE(session.has_work());
}

TEST(Session, RollbackRaisesTheEpochAndDiscardsLaterWindows) {
  Session session = OpenSession();
  Accept(session, MakeWindow(1, 4, {11, 12}));
  Accept(session, MakeWindow(2, 6, {13}));
  Accept(session, MakeWindow(3, 7, {14}));
  const auto verdicts = session.Decide(2, Canonical({11, 77, 13}), DecideWindow);
  ASSERT_EQ(verdicts.size(), 3u);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kRollback);
  EXPECT_EQ(verdicts[0].epoch, 1u);
  EXPECT_EQ(verdicts[0].committed_length, 6);
  EXPECT_EQ(verdicts[0].canonical_token, 77);
  EXPECT_EQ(verdicts[0].logprobs.size(), 2u);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(verdicts[i].window_id, i + 1);
    EXPECT_EQ(verdicts[i].outcome, Outcome::kDiscarded);
    EXPECT_EQ(verdicts[i].epoch, 1u);
    EXPECT_EQ(verdicts[i].committed_length, 6);
    EXPECT_THAT(verdicts[i].logprobs, IsEmpty());
  }
  // One that was on its way is discarded too, one of the new epoch is taken in.
  const auto stale = session.AddWindow(MakeWindow(4, 8, {15}, 0), kNow);
  ASSERT_TRUE(stale.ok());
  EXPECT_EQ((*stale)->outcome, Outcome::kDiscarded);
  Accept(session, MakeWindow(5, 6, {78}, 1));
}

TEST(Session, AnEndDiscardsLaterWindows) {
  Session session = OpenSession();
  Accept(session, MakeWindow(1, 4, {11, kStop, 12}));
  Accept(session, MakeWindow(2, 7, {13}));
  const auto verdicts = session.Decide(1, Canonical({11, kStop, 50}), DecideWindow);
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kCommit);
  EXPECT_EQ(verdicts[0].committed_length, 6);
  EXPECT_EQ(verdicts[0].end, End::kStopToken);
  EXPECT_EQ(verdicts[1].outcome, Outcome::kDiscarded);
  EXPECT_EQ(verdicts[1].end, End::kNone);
  const auto late = session.AddWindow(MakeWindow(3, 8, {14}), kNow);
  ASSERT_TRUE(late.ok());
  EXPECT_EQ((*late)->outcome, Outcome::kDiscarded);
}

TEST(Session, WindowsHaveNoRowsPastAnEnd) {
  SessionOpening opening = Opening();
  opening.max_tokens = 3;  // nothing beyond length 6
  Session session = OpenSession(std::move(opening));
  Accept(session, MakeWindow(1, 4, {11, 12, 13}));
  Accept(session, MakeWindow(2, 7, {14}));
  EXPECT_EQ(session.window_rows(0), 2);
  EXPECT_EQ(session.window_rows(1), 0);
  const auto verdicts = session.Decide(1, Canonical({11, 12}), DecideWindow);
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].end, End::kMaxTokens);
  EXPECT_EQ(verdicts[1].outcome, Outcome::kDiscarded);
}

TEST(Session, SamplingHasThePositionOfTheTokenBeingChosen) {
  SessionOpening opening = Opening();
  opening.temperature = 0.5f;
  opening.top_k = 7;
  opening.top_p = 0.75f;
  opening.seed = 3;
  opening.choice_index = 2;
  opening.min_p = 0.25f;
  Session session = OpenSession(std::move(opening));
  const SampleRow row = session.SamplingAfter(3);
  EXPECT_EQ(row.position, 4);
  EXPECT_EQ(row.min_p, 0.25f);
  EXPECT_TRUE(row.edits.empty());
  EXPECT_EQ(row.temperature, 0.5f);
  EXPECT_EQ(row.top_k, 7);
  EXPECT_EQ(row.top_p, 0.75f);
  EXPECT_EQ(row.seed, 3u);
  EXPECT_EQ(row.choice_index, 2);
}

using Edits = std::vector<LogitEdit>;

// Prompt and opening verdict give tokens at positions 0 to 3; the one at 3 is output.
TEST(Session, ARowsEditsCountTheTokensBeforeItAndNoOthers) {
  SessionOpening opening = Opening();
  opening.logit_rules.presence_penalty = 0.5f;
  opening.logit_rules.frequency_penalty = 0.25f;
  Session session = OpenSession(std::move(opening));
  const int32_t first = session.TokenAt(3);
  ASSERT_NE(first, 11);
  Accept(session, MakeWindow(1, 4, {11, 12}));
  Accept(session, MakeWindow(2, 6, {11}));
  const LogitEdit first_edit{.token_id = first, .penalty = 0.75f};
  const LogitEdit once{.token_id = 11, .penalty = 0.75f};
  const LogitEdit other{.token_id = 12, .penalty = 0.75f};
  const LogitEdit twice{.token_id = 11, .penalty = 1.0f};
  const auto edits_after = [&](int32_t position) {
    return testing::SortedEdits(session.SamplingAfter(position).edits);
  };
  const auto sorted = [](const Edits& edits) { return testing::SortedEdits(edits); };
  EXPECT_EQ(edits_after(3), sorted({first_edit}));
  EXPECT_EQ(edits_after(4), sorted({first_edit, once}));
  EXPECT_EQ(edits_after(5), sorted({first_edit, once, other}));
  EXPECT_EQ(edits_after(6), sorted({first_edit, twice, other}));
  // Another pass may begin with an earlier row.
  EXPECT_EQ(edits_after(4), sorted({first_edit, once}));
  edits_after(6);
  // 13 takes the place of 12: all later candidates are void.
  const auto verdicts = session.Decide(1, Canonical({11, 13}), DecideWindow);
  EXPECT_EQ(verdicts.front().outcome, Outcome::kRollback);
  EXPECT_EQ(edits_after(5), sorted({first_edit, once, {.token_id = 13, .penalty = 0.75f}}));
}

TEST(Session, CommittedTokensOfAnOpeningAreOutputAndThePromptIsNot) {
  SessionOpening opening = Opening();
  const std::vector<int32_t> prompt = opening.prompt_token_ids;
  opening.committed_token_ids = {20, 21, 20};
  opening.logit_rules = {.repetition_penalty = 1.5f, .presence_penalty = 1.0f, .min_tokens = 4};
  opening.stop_token_ids = {30};
  opening.max_tokens = 50;
  const LogitRules rules = opening.logit_rules;
  Session session(std::move(opening), /*context_limit=*/100, kNow);
  EXPECT_EQ(testing::SortedEdits(session.SamplingAfter(session.committed_length() - 1).edits),
            testing::NaiveEdits(rules, prompt, std::vector<int32_t>{20, 21, 20},
                                std::vector<int32_t>{30}));
}

void ExpectRejected(Session& session, Window window, const std::string& field) {
  const auto result = session.AddWindow(std::move(window), kNow);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(result.status()), field);
}

TEST(Session, RejectsWindowsThatBreakTheProtocol) {
  Session unopened(Opening(), 100, kNow);
  ExpectRejected(unopened, MakeWindow(1, 4, {1}), "window_id");
  Session session = OpenSession();
  ExpectRejected(session, MakeWindow(0, 4, {1}), "window_id");
  ExpectRejected(session, MakeWindow(1, 4, {1}, 1), "epoch");
  ExpectRejected(session, MakeWindow(1, 5, {1}), "first_position");
  Session second = OpenSession();
  Accept(second, MakeWindow(1, 4, {1, 2}));
  ExpectRejected(second, MakeWindow(2, 5, {1}), "first_position");
  ExpectRejected(second, MakeWindow(2, 6, {1}), "window_id");
}

TEST(Session, RejectsEpochsThatFall) {
  Session session = OpenSession();
  Accept(session, MakeWindow(1, 4, {11}));
  session.Decide(1, Canonical({12}), DecideWindow);
  Accept(session, MakeWindow(2, 5, {13}, 1));
  ExpectRejected(session, MakeWindow(3, 6, {14}, 0), "epoch");
}

TEST(Session, BoundsPendingWindows) {
  Session session = OpenSession(Opening(), 100000);
  for (int i = 0; i < kMaxPendingWindows; ++i) {
    Accept(session, MakeWindow(static_cast<uint64_t>(i) + 1, 4 + i, {1}));
  }
  const auto result =
      session.AddWindow(MakeWindow(kMaxPendingWindows + 1, 4 + kMaxPendingWindows, {1}), kNow);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("windows"));
}

}  // namespace
}  // namespace selfsame::verifier
