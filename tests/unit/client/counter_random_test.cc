#include "decoder/client/counter_random.h"

#include <algorithm>
#include <numeric>

#include "gtest/gtest.h"

namespace selfsame::client {
namespace {

TEST(CounterRandomTest, IsSplitMix64) {
  CounterRandom random(0);
  EXPECT_EQ(random.Next(), 0xe220a8397b1dcdafu);
  EXPECT_EQ(random.Next(), 0x6e789e6aa1b965f4u);
}

TEST(CounterRandomTest, BelowIsUniform) {
  CounterRandom random(7);
  std::vector<int> counts(10);
  for (int i = 0; i < 100000; ++i) ++counts[random.Below(10)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
}

TEST(CounterRandomTest, ExponentialTimesHaveTheMeanAndSpreadOfAPoissonProcess) {
  CounterRandom random(3);
  const double rate = 4.0;
  const int count = 100000;
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < count; ++i) {
    const double time = random.Exponential(rate);
    ASSERT_GE(time, 0.0);
    sum += time;
    squares += time * time;
  }
  const double mean = sum / count;
  EXPECT_NEAR(mean, 1.0 / rate, 0.005);
  EXPECT_NEAR(squares / count - mean * mean, 1.0 / (rate * rate), 0.005);
}

TEST(CounterRandomTest, ShuffleKeepsEveryItem) {
  std::vector<int> items(50);
  std::iota(items.begin(), items.end(), 0);
  std::vector<int> shuffled = items;
  CounterRandom(1).Shuffle(shuffled);
  EXPECT_NE(shuffled, items);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, items);
}

}  // namespace
}  // namespace selfsame::client
