#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace selfsame {
namespace {

TEST(ThreadPoolTest, EveryIndexRunsOnceAndIsDoneWhenRunReturns) {
  for (const int threads : {1, 2, 3, 5}) {
    cpu::ThreadPool pool(threads);
    EXPECT_EQ(pool.thread_count(), threads);
    for (int call = 0; call < 500; ++call) {
      const int count = call % 37;
      std::vector<int> runs(count, 0);
      std::atomic<bool> is_thread_valid = true;
      pool.Run(count, [&](int index, int thread) {
        ++runs[index];
        if (thread < 0 || thread >= threads) is_thread_valid = false;
      });
      EXPECT_TRUE(is_thread_valid);
      for (const int run_count : runs) ASSERT_EQ(run_count, 1);
    }
  }
}

TEST(ThreadPoolTest, SleepingWorkersComeBack) {
  cpu::ThreadPool pool(3);
  for (int call = 0; call < 20; ++call) {
    // Long enough for workers to give up spinning; correctness does not depend on it.
    for (int i = 0; i < 2000; ++i) std::this_thread::yield();
    std::atomic<int> sum = 0;
    pool.Wake();
    pool.Run(10, [&](int index, int) { sum += index; });
    EXPECT_EQ(sum, 45);
  }
}

TEST(ThreadPoolTest, TwoPoolsWorkAtTheSameTime) {
  const auto work = [] {
    cpu::ThreadPool pool(2);
    int64_t total = 0;
    for (int call = 0; call < 300; ++call) {
      std::vector<int64_t> values(16, 0);
      pool.Run(16, [&](int index, int) { values[index] = index; });
      for (const int64_t value : values) total += value;
    }
    EXPECT_EQ(total, 300 * 120);
  };
  std::thread other(work);
  work();
  other.join();
}

}  // namespace
}  // namespace selfsame
