#include "decoder/engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/decoder/scheduler_fixture.h"

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(SchedulerTest, PlansNothingWithoutRequests) {
  Create({.max_batch_tokens = 8, .max_batch_size = 4});
  EXPECT_THAT(Step().rows, IsEmpty());
}

TEST_F(SchedulerTest, PrefillsInChunksThenDecodes) {
  Create({.max_batch_tokens = 8, .max_batch_size = 4});
  ScheduledRequest* a = Add(20);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 8)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 8)));
  StepPlan last_chunk = Step();
  EXPECT_THAT(RowsOf(last_chunk), ElementsAre(P(0, 4)));
  EXPECT_TRUE(last_chunk.rows[0].is_sampled);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1)));
  EXPECT_EQ(a->length, 22);
}

TEST_F(SchedulerTest, DecodesBesideAPrefillAndJoinsAtOnce) {
  Create({.max_batch_tokens = 8, .max_batch_size = 4});
  Add(3);
  Step();
  Add(20);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 7)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 7)));
  Add(2);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 5), P(2, 2)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 1), P(2, 1)));
}

TEST_F(SchedulerTest, DecodingIsNeverHeldUpByPrefill) {
  Create({.max_batch_tokens = 4, .max_batch_size = 4});
  Add(1000);
  Step();
  Add(1);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 3), P(1, 1)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 3), P(1, 1)));
}

TEST_F(SchedulerTest, BatchSizeBoundsTheRequestsInAStepAndTheNextJoinsWhenOneLeaves) {
  Create({.max_batch_tokens = 8, .max_batch_size = 2});
  ScheduledRequest* a = Add(1);
  Add(1);
  Add(1);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 1)));
  EXPECT_EQ(scheduler_->waiting_count(), 1);
  scheduler_->Remove(a);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(1, 1), P(2, 1)));
  EXPECT_EQ(scheduler_->waiting_count(), 0);
}

TEST_F(SchedulerTest, ARequestThatIsNotReadyTakesNoRowsAndHoldsNobodyUp) {
  Create({.max_batch_tokens = 8, .max_batch_size = 2});
  ScheduledRequest* a = Add(1);
  Add(1);
  Add(1);
  Step();
  a->is_ready = false;
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(1, 1), P(2, 1)));
  EXPECT_GT(a->state->length(), 0);
  a->is_ready = true;
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 1)));
}

TEST_F(SchedulerTest, WaitingRequestsThatAreNotReadyAreOvertaken) {
  Create({.max_batch_tokens = 8, .max_batch_size = 2});
  ScheduledRequest* a = Add(1);
  a->is_ready = false;
  a->is_stalled = true;
  Add(1);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(1, 1)));
  a->is_ready = true;
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 1)));
}

TEST_F(SchedulerTest, ARollbackIsRecomputedFromTheTruncatedState) {
  Create({.max_batch_tokens = 8, .max_batch_size = 4});
  ScheduledRequest* a = Add(10);
  for (int i = 0; i < 6; ++i) Step();
  ASSERT_EQ(a->state->length(), 14);
  a->length = 12;
  a->state->Truncate(11);
  StepPlan plan = Step();
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(0, 1)));
  EXPECT_TRUE(plan.rows[0].is_sampled);
}

TEST_F(SchedulerTest, ShortPromptsDoNotWaitForLongOnes) {
  Create({.max_batch_tokens = 32, .max_batch_size = 8, .prefill_chunk = 8});
  Add(1000);
  Add(1000);
  Add(1000);
  Add(7);
  Add(9);
  // A row each; a chunk for the first; then the shortest, and what is left in that order.
  const StepPlan plan = Step();
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(0, 8), P(1, 8), P(2, 1), P(3, 7), P(4, 8)));
  EXPECT_TRUE(plan.rows[3].is_sampled);
  EXPECT_TRUE(Step().rows[4].is_sampled);
}

TEST_F(SchedulerTest, AStreamOfShortPromptsDoesNotStarveALongOne) {
  Create({.max_batch_tokens = 16, .max_batch_size = 8, .prefill_chunk = 4});
  ScheduledRequest* const longest = Add(200);
  int steps = 0;
  while (longest->state->length() < 199) {
    while (scheduler_->running_count() + scheduler_->waiting_count() < 8) Add(30);
    Step();
    ++steps;
    for (const auto& request : requests_) {
      if (request.get() == longest || request->length <= 30) continue;
      scheduler_->Remove(request.get());
      request->length = 0;
    }
    ASSERT_LT(steps, 60) << "a chunk of four rows a step";
  }
}

TEST_F(SchedulerTest, RequestsAreAdmittedInOrderOfRank) {
  Create({.max_batch_tokens = 8, .max_batch_size = 1});
  ScheduledRequest* const running = Add(1, /*rank=*/0);
  Step();
  Add(1, /*rank=*/5);
  Add(1, /*rank=*/3);
  Add(1, /*rank=*/3);
  scheduler_->Remove(running);
  for (const uint64_t id : {2, 3, 1}) {
    EXPECT_THAT(RowsOf(Step()), ElementsAre(P(id, 1)));
    scheduler_->Remove(requests_[id].get());
  }
}

TEST_F(SchedulerTest, AFullBatchMakesPlaceForALowerRankAndKeepsTheOthersState) {
  Create({.max_batch_tokens = 8, .max_batch_size = 2});
  Add(1, /*rank=*/0);
  ScheduledRequest* const last = Add(1, /*rank=*/10, /*priority=*/1);
  Step();
  ScheduledRequest* const urgent = Add(1, /*rank=*/5);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(2, 1)));
  EXPECT_GT(last->state->length(), 0);
  scheduler_->Remove(urgent);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 1)));
}

TEST_F(SchedulerTest, RowsWithLogitsAreLimitedAndTheRestOfTheStepIsNot) {
  Create({.max_batch_tokens = 32, .max_batch_size = 4, .prefill_chunk = 16, .max_logit_rows = 10});
  Add(30)->logit_length = 29;
  Add(40);
  // Both have a row that takes logits anyway, which leaves eight.
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 9), P(1, 23)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 9), P(1, 17)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 9), P(1, 1)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 3), P(1, 1)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 1)));
}

TEST_F(SchedulerTest, RequestsShareTheRowsWithLogitsAndNoneHoldsUpDecoding) {
  Create({.max_batch_tokens = 64, .max_batch_size = 4, .prefill_chunk = 4, .max_logit_rows = 12});
  Add(1);
  Add(30)->logit_length = 29;
  Add(20)->logit_length = 19;
  Add(25)->logit_length = 24;
  // Of the eight beyond a row each the first has its chunk, then those that lack least.
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 4), P(2, 4), P(3, 3)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 4), P(2, 4), P(3, 3)));
}

TEST_F(SchedulerTest, WithoutALimitEachRequestHasOneRowWithLogitsAndWhatTheBatchLeaves) {
  Create({.max_batch_tokens = 32, .max_batch_size = 3});
  Add(9)->logit_length = 8;
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 3)));
  Add(1);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 2), P(1, 1)));
  Add(1);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 1), P(2, 1)));
}

TEST_F(SchedulerTest, RowsBehindTheLogitLengthAreNotLimited) {
  Create({.max_batch_tokens = 32, .max_batch_size = 2, .max_logit_rows = 4});
  Add(30)->logit_length = 5;
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 4)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 4))) << "one of them is below the logit length";
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 22)));
}

// Everybody finishes, in spite of shortage, pauses and stalls.
TEST_F(SchedulerTest, EveryRequestFinishesUnderRandomLoad) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    requests_.clear();
    uint32_t state = seed;
    auto random = [&state](uint32_t below) {
      state = state * 1664525u + 1013904223u;
      return (state >> 8) % below;
    };
    Create({.max_batch_tokens = static_cast<int32_t>(4 + random(30)), .max_batch_size = 4},
           /*blocks=*/static_cast<int32_t>(6 + random(6)));
    std::vector<int32_t> goals;
    int32_t finished = 0;
    int steps = 0;
    while (finished < 20) {
      ASSERT_LT(++steps, 5000);
      if (goals.size() < 20 && random(3) == 0) {
        const auto length = static_cast<int32_t>(1 + random(40));
        const auto priority = static_cast<int32_t>(random(3));
        Add(length, steps + 10 * priority, priority);
        goals.push_back(length + 1 + static_cast<int32_t>(random(50)));
      }
      for (size_t i = 0; i < goals.size(); ++i) {
        if (goals[i] == 0) continue;
        requests_[i]->is_ready = random(4) != 0;
        requests_[i]->is_stalled = !requests_[i]->is_ready && random(50) == 0;
      }
      Step();
      for (size_t i = 0; i < goals.size(); ++i) {
        if (goals[i] == 0 || requests_[i]->length < goals[i]) continue;
        scheduler_->Remove(requests_[i].get());
        goals[i] = 0;
        ++finished;
      }
    }
    EXPECT_EQ(pool_->free_count(), pool_->block_count());
  }
}

}  // namespace
}  // namespace selfsame::decoder
