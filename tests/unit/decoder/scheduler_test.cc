#include "decoder/engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Plays the engine's part: owns requests, advances what a plan computed, appends sampled tokens.
class SchedulerTest : public ::testing::Test {
 protected:
  void Create(SchedulerOptions options, int32_t blocks = 1000) {
    options_ = options;
    pool_ = std::make_unique<BlockPool>(blocks);
    scheduler_ = std::make_unique<Scheduler>(options);
  }

  ScheduledRequest* Add(int32_t length, int64_t rank = 0, int32_t priority = 0) {
    auto request = std::make_unique<ScheduledRequest>();
    request->rank = rank;
    request->priority = priority;
    request->id = requests_.size();
    request->length = length;
    request->state = std::make_unique<PagedSequenceState>(*pool_);
    scheduler_->Add(request.get());
    requests_.push_back(std::move(request));
    return requests_.back().get();
  }

  // Another whose tokens are all the same, and for which the prefix cache is searched.
  ScheduledRequest* AddCached(int32_t length) {
    ScheduledRequest* request = Add(length);
    request->token_at = [](int32_t) { return 7; };
    return request;
  }

  // Plans and runs one step; checks what must hold for every plan.
  StepPlan Step() {
    StepPlan plan = scheduler_->Plan();
    int32_t total = 0;
    std::set<uint64_t> seen;
    for (const StepPlan::Rows& rows : plan.rows) {
      ScheduledRequest& request = *rows.request;
      EXPECT_TRUE(request.is_ready);
      EXPECT_TRUE(seen.insert(request.id).second) << "request twice in a step";
      EXPECT_GT(rows.row_count, 0);
      const int32_t end = request.state->length() + rows.row_count;
      EXPECT_LE(end, request.length);
      EXPECT_EQ(rows.is_sampled, end == request.length);
      EXPECT_GE(request.state->block_count(), BlocksFor(end));
      total += rows.row_count;
      request.state->Advance(end);
      if (rows.is_sampled) ++request.length;
    }
    EXPECT_LE(total, options_.max_batch_tokens);
    EXPECT_LE(plan.rows.size(), static_cast<size_t>(options_.max_batch_size));
    for (const ScheduledRequest* request : plan.preempted) {
      EXPECT_EQ(request->state->length(), 0);
      EXPECT_EQ(request->state->block_count(), 0);
    }
    return plan;
  }

  static std::vector<std::pair<uint64_t, int32_t>> RowsOf(const StepPlan& plan) {
    std::vector<std::pair<uint64_t, int32_t>> rows;
    for (const auto& row : plan.rows) rows.emplace_back(row.request->id, row.row_count);
    return rows;
  }

  SchedulerOptions options_;
  std::unique_ptr<BlockPool> pool_;
  std::vector<std::unique_ptr<ScheduledRequest>> requests_;
  std::unique_ptr<Scheduler> scheduler_;
};

using P = std::pair<uint64_t, int32_t>;

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

TEST_F(SchedulerTest, NobodyOvertakesAReadyHeadOfTheQueueThatNeedsRoom) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/4);
  ScheduledRequest* a = Add(33);  // 3 blocks
  Add(20);                        // 2 blocks
  Add(1);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 33)));
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1)));
  scheduler_->Remove(a);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(1, 20), P(2, 1)));
}

TEST_F(SchedulerTest, ShortageTakesTheStateOfTheYoungestAndRecomputesItLater) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/2);
  ScheduledRequest* a = Add(16);
  ScheduledRequest* b = Add(10);
  Step();  // lengths 17 and 11: a needs its second block
  StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(b));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(0, 1)));
  EXPECT_EQ(b->length, 11);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1)));
  scheduler_->Remove(a);
  plan = Step();
  EXPECT_THAT(plan.admitted, ElementsAre(b));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(1, 11)));
  EXPECT_TRUE(plan.rows[0].is_sampled);
}

TEST_F(SchedulerTest, TheYoungestGivesUpItsOwnStateWhenItIsTheOneShortOfRoom) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/2);
  Add(10);
  ScheduledRequest* b = Add(16);
  Step();
  StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(b));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(0, 1)));
}

TEST_F(SchedulerTest, PreemptedRequestsComeBeforeThoseThatNeverRan) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/3);
  ScheduledRequest* a = Add(16);
  Add(16);
  Add(16);
  Add(16);  // waits
  Step();
  StepPlan plan = Step();  // a takes c's block, b gives up its own
  EXPECT_THAT(plan.preempted, ElementsAre(requests_[2].get(), requests_[1].get()));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(0, 1)));
  scheduler_->Remove(a);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(1, 17)));
}

TEST_F(SchedulerTest, StalledRequestsLoseTheirStateFirst) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/3);
  ScheduledRequest* a = Add(10);
  ScheduledRequest* b = Add(16);
  Add(10);
  Step();
  a->is_ready = false;
  a->is_stalled = true;
  StepPlan plan = Step();  // b is short of a block
  EXPECT_THAT(plan.preempted, ElementsAre(a));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(1, 1), P(2, 1)));
  EXPECT_GT(b->state->length(), 0);
}

TEST_F(SchedulerTest, AdmissionTakesTheStateOfStalledRequests) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/2);
  ScheduledRequest* a = Add(20);
  Step();
  a->is_ready = false;
  a->is_stalled = true;
  ScheduledRequest* b = Add(20);
  StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(a));
  EXPECT_THAT(plan.admitted, ElementsAre(b));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(1, 20)));
}

TEST_F(SchedulerTest, ARequestThatNeverWaitsTakesTheStateOfThoseThatDo) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/3);
  Add(1);
  ScheduledRequest* a = Add(20);
  Step();
  a->is_ready = false;
  ScheduledRequest* b = Add(20);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1)));
  b->never_waits = true;
  const StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(a));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(0, 1), P(2, 20)));
}

TEST_F(SchedulerTest, ARequestThatNeverWaitsIsNotHeldUpByOneThatDoes) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/4);
  Add(1);
  ScheduledRequest* a = Add(20);
  Step();
  a->is_ready = false;
  Add(20);  // the head of the queue, one block short
  Add(1)->never_waits = true;
  const StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(a));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(0, 1), P(2, 20), P(3, 1)));
}

TEST_F(SchedulerTest, TheDeviceDoesNotIdleForWantOfWhatAWaitingRequestHolds) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/2);
  ScheduledRequest* a = Add(20);
  Step();
  a->is_ready = false;
  Add(20);
  const StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(a));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(1, 20)));
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

TEST_F(SchedulerTest, RoomIsTakenFromTheHighestRank) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/2);
  ScheduledRequest* const first = Add(10, /*rank=*/7);
  Add(16, /*rank=*/2);
  Step();
  const StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(first));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(1, 1)));
}

TEST_F(SchedulerTest, AWaitingRequestTakesRoomFromAGreaterPriorityOnly) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/2);
  ScheduledRequest* const running = Add(20, /*rank=*/10, /*priority=*/1);
  Step();
  ScheduledRequest* const older = Add(20, /*rank=*/5, /*priority=*/1);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1))) << "age alone takes nothing";
  scheduler_->Remove(older);
  Add(20, /*rank=*/11, /*priority=*/0);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1))) << "nor does priority against rank";
  Add(20, /*rank=*/9, /*priority=*/0);
  const StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(running));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(3, 20)));
}

TEST_F(SchedulerTest, PriorityTakesIdleStateBeforeThatOfOneThatNeverWaits) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/4);
  ScheduledRequest* const idle = Add(20, /*rank=*/1);
  ScheduledRequest* const ordinary = Add(20, /*rank=*/10, /*priority=*/1);
  ordinary->never_waits = true;
  Step();
  idle->is_ready = false;
  Add(20, /*rank=*/5);
  const StepPlan plan = Step();
  EXPECT_THAT(plan.preempted, ElementsAre(idle));
  EXPECT_THAT(RowsOf(plan), ElementsAre(P(2, 20), P(1, 1)));
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

TEST_F(SchedulerTest, AdmissionTakesWhatThePrefixCacheHasButTheLastToken) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4});
  ScheduledRequest* first = AddCached(48);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 48)));
  first->state->Publish(first->token_at, 48);
  AddCached(48);
  AddCached(49);
  AddCached(10);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 16), P(2, 1), P(3, 10)));
}

TEST_F(SchedulerTest, ARequestThatFindsNoRoomHoldsNothingOfTheCache) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/4);
  ScheduledRequest* first = AddCached(48);
  Step();
  first->state->Publish(first->token_at, 48);
  ScheduledRequest* second = AddCached(80);  // five blocks, three of them shared
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1)));
  EXPECT_EQ(second->state->block_count(), 0);
  EXPECT_EQ(scheduler_->waiting_count(), 1);
  EXPECT_EQ(pool_->free_count(), 0);
}

// What it had published stays cached until somebody needs the blocks.
TEST_F(SchedulerTest, APreemptedRequestComesBackThroughTheCache) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4}, /*blocks=*/6);
  ScheduledRequest* first = Add(32);
  ScheduledRequest* second = AddCached(63);
  Step();
  second->state->Publish(second->token_at, 63);
  EXPECT_THAT(Step().preempted, ElementsAre(second));
  scheduler_->Remove(first);
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(1, 64 - 48)));
}

// As the choices of one request do: the first computes, the others follow a step behind.
TEST_F(SchedulerTest, RequestsOfOnePromptComputeItOnce) {
  Create({.max_batch_tokens = 67, .max_batch_size = 4, .prefill_chunk = 64});
  for (int i = 0; i < 4; ++i) AddCached(200);
  const auto publish = [&] {
    for (const auto& request : requests_) {
      request->state->Publish(request->token_at, request->length - 1);
    }
  };
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 64), P(1, 1), P(2, 1), P(3, 1)));
  publish();
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 64), P(1, 1), P(2, 1), P(3, 1)));
  EXPECT_EQ(requests_[0]->cached_count, 0);
  EXPECT_EQ(requests_[1]->cached_count, 63);
  EXPECT_EQ(requests_[3]->state->length(), 65);
  publish();
  Step();
  publish();
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 8), P(1, 8), P(2, 8), P(3, 8)));
  EXPECT_EQ(requests_[3]->state->length(), 200);
}

}  // namespace
}  // namespace selfsame::decoder
