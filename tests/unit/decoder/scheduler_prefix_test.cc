// The scheduler over a prefix cache that holds what requests begin with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/decoder/scheduler_fixture.h"

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;

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

TEST_F(SchedulerTest, ARequestWhosePromptRowsTakeLogitsComputesThemAll) {
  Create({.max_batch_tokens = 100, .max_batch_size = 4, .max_logit_rows = 100});
  ScheduledRequest* first = AddCached(48);
  Step();
  first->state->Publish(first->token_at, 48);
  ScheduledRequest* const second = AddCached(48);
  second->logit_length = 47;
  EXPECT_THAT(RowsOf(Step()), ElementsAre(P(0, 1), P(1, 48)));
  EXPECT_EQ(second->cached_count, 0);
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
