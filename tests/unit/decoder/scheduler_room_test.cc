// Which requests get KV blocks, and whose state is taken, when there is not room for all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/decoder/scheduler_fixture.h"

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace selfsame::decoder
