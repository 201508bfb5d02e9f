// The prefix cache of the verifier: what is found there has the bits of what is computed, and
// nothing is found that must not be.

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/verifier/worker_testing.h"

namespace selfsame::verifier {
namespace {

using testing::Answer;

class WorkerPrefixTest : public WorkerTest {
 protected:
  // Runs a session and returns how much of it the cache had.
  int32_t Serve(SessionOpening opening, const Answer& answer, ProposerOptions options = {}) {
    opening.session_id = next_session_id_++;
    const uint64_t id = opening.session_id;
    proposers_.clear();
    Add(std::move(opening), answer, options);
    RunAll();
    sink_->Take();  // windows that came after the end
    ExpectSame(proposers_.at(id).committed(), answer);
    worker_->CloseSession(kStream, id);
    return proposers_.at(id).cached_tokens();
  }

  // Leaves nothing of others in a cache that holds one context.
  void FillCache() {
    const SessionOpening opening = Opening(77, kContextLimit - 1, 1);
    Serve(opening, Reference(opening));
  }

  uint64_t next_session_id_ = 1000;
};

TEST_F(WorkerPrefixTest, ColdWarmAndEvictedAnswersAreTheSame) {
  Start(64, kContextLimit / kKvBlockTokens);
  for (const int32_t prompt_length : {1, 15, 16, 17, 31, 32, 33, 90}) {
    SCOPED_TRACE(prompt_length);
    // Sampled and greedy.
    for (const uint64_t id : {1, 2}) {
      const SessionOpening opening = Opening(id, prompt_length, 40);
      const Answer answer = Reference(opening);
      EXPECT_EQ(Serve(opening, answer), 0);
      // The row of the last prompt token is always computed, and with it its block.
      const int32_t cached = (prompt_length - 1) / kKvBlockTokens * kKvBlockTokens;
      EXPECT_EQ(Serve(opening, answer), cached);
      FillCache();
      EXPECT_EQ(Serve(opening, answer), 0);
    }
  }
}

// The rows that give them must run; what they leave serves others.
TEST_F(WorkerPrefixTest, PromptLogprobsTakeNothingFromTheCacheAndAreTheSame) {
  Start(64);
  SessionOpening opening = Opening(2, 90, 40);
  Serve(opening, Reference(opening));
  opening.prompt_logprobs = 2;
  const Answer answer = Reference(opening);
  EXPECT_EQ(answer.prompt_logprobs.size(), 89u);
  EXPECT_EQ(Serve(opening, answer), 0);
  opening.prompt_logprobs.reset();
  EXPECT_EQ(Serve(opening, Reference(opening)), 80);
}

TEST_F(WorkerPrefixTest, TheNextTurnFindsTheOutputToo) {
  Start(64);
  const SessionOpening opening = Opening(2, 20, 60);
  const Answer answer = Reference(opening);
  ASSERT_EQ(answer.token_ids.size(), 60u);
  Serve(opening, answer, {.window_size = 16, .wrong_percent = 30});
  SessionOpening next = opening;
  next.prompt_token_ids.insert(next.prompt_token_ids.end(), answer.token_ids.begin(),
                               answer.token_ids.end());
  next.prompt_token_ids.resize(100, 7);
  // Of the 80 tokens the last was never the input of a row, so the fifth block was never full.
  EXPECT_EQ(Serve(next, Reference(next)), 64);
}

TEST_F(WorkerPrefixTest, ASessionThatResumesFindsCommittedTokens) {
  Start(64);
  SessionOpening opening = Opening(3, 20, 60);
  const Answer answer = Reference(opening);
  Serve(opening, answer);
  opening.committed_token_ids.assign(answer.token_ids.begin(), answer.token_ids.begin() + 45);
  EXPECT_EQ(Serve(opening, answer), 64);
  opening.committed_token_ids.resize(44);
  EXPECT_EQ(Serve(opening, answer), 48);  // 64 tokens: the last row's block is computed
}

TEST_F(WorkerPrefixTest, CandidatesThatWereRolledBackAreNeverFound) {
  Start(96);
  std::vector<Answer> answers;
  for (uint64_t id = 0; id < 5; ++id) answers.push_back(Reference(Opening(id, 33, 70)));
  for (int round = 0; round < 4; ++round) {
    for (uint64_t id = 0; id < 5; ++id) {
      SCOPED_TRACE(absl::StrCat("round ", round, " session ", id));
      const int32_t cached =
          Serve(Opening(id, 33, 70), answers[id],
                {.window_size = 24, .has_random_cuts = true, .wrong_percent = 10 + 30 * round});
      EXPECT_EQ(cached, round == 0 ? 0 : 32);
    }
  }
}

// One pass computes both prompts; the later one's blocks give way to the earlier one's.
TEST_F(WorkerPrefixTest, SessionsOfOnePromptSideBySideShareTheirBlocks) {
  Start(256);
  const SessionOpening opening = Opening(2, 90, 40);
  const Answer answer = Reference(opening);
  for (uint64_t id = 1; id <= 4; ++id) {
    SessionOpening copy = opening;
    copy.session_id = id;
    Add(copy, answer, {.window_size = 8, .wrong_percent = 20});
  }
  int32_t least_free = worker_->stats().free_kv_blocks;
  for (uint64_t id = 1; id <= 4; ++id) {
    worker_->OpenSession(kStream, proposers_.at(id).opening(), SteadyTime());
  }
  for (int pass = 0; pass < 1000; ++pass) {
    ASSERT_TRUE(worker_->RunPass(SteadyTime()).ok());
    for (const Verdict& verdict : sink_->Take()) {
      for (Window& window : proposers_.at(verdict.session_id).OnVerdict(verdict)) {
        worker_->SubmitWindow(kStream, std::move(window), SteadyTime());
      }
    }
    least_free = std::min(least_free, worker_->stats().free_kv_blocks);
  }
  for (auto& [id, proposer] : proposers_) {
    EXPECT_TRUE(proposer.is_done());
    ExpectSame(proposer.committed(), answer);
  }
  // 130 positions: eight full blocks for all, and what is not settled yet of each.
  EXPECT_GE(least_free, 256 - 8 - 4 * 3);
}

TEST_F(WorkerPrefixTest, AnEvictedSessionComesBackThroughTheCache) {
  std::vector<Answer> answers;
  Start(64, kContextLimit / kKvBlockTokens);
  for (uint64_t id = 0; id < 6; ++id) {
    answers.push_back(Reference(Opening(id, 80, 70)));
    Add(Opening(id, 80, 70), answers.back(), {.window_size = 8, .max_inflight = 2});
  }
  RunAll(/*stagger=*/2);
  for (auto& [id, proposer] : proposers_) ExpectSame(proposer.committed(), answers[id]);
  // No prompt is another's, so all hits are those of evicted sessions.
  const WorkerStats stats = worker_->stats();
  EXPECT_GT(stats.evictions, 5);
  EXPECT_GT(stats.prefix_hits, 0);
  EXPECT_LT(stats.prefix_hits, stats.prefix_queries);
  EXPECT_EQ(stats.free_kv_blocks, kContextLimit / kKvBlockTokens);
}

TEST_F(WorkerPrefixTest, WithoutTheCacheNothingIsFound) {
  Start(64, 256, DecideWindow, 64, /*enable_prefix_caching=*/false);
  const SessionOpening opening = Opening(2, 90, 40);
  const Answer answer = Reference(opening);
  EXPECT_EQ(Serve(opening, answer), 0);
  EXPECT_EQ(Serve(opening, answer), 0);
  EXPECT_EQ(worker_->stats().prefix_queries, 0);
}

}  // namespace
}  // namespace selfsame::verifier
