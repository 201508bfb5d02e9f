#include "decoder/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;

TEST(WorkQueueTest, RunsTasksInOrderAndFinishesThemBeforeItGoes) {
  std::vector<int> order;
  {
    WorkQueue queue(10);
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(queue.Post([&order, i] { order.push_back(i); }));
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

TEST(WorkQueueTest, RefusesMoreThanMayWait) {
  std::promise<void> is_running;
  std::promise<void> may_end;
  int ran = 0;
  {
    WorkQueue queue(2);
    ASSERT_TRUE(queue.Post([&] {
      is_running.set_value();
      may_end.get_future().wait();
      ++ran;
    }));
    is_running.get_future().wait();
    EXPECT_TRUE(queue.Post([&ran] { ++ran; }));
    EXPECT_TRUE(queue.Post([&ran] { ++ran; }));
    EXPECT_FALSE(queue.Post([&ran] { ++ran; }));
    may_end.set_value();
  }
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace selfsame::decoder
