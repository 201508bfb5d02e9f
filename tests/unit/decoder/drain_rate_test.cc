#include "decoder/engine/drain_rate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr SteadyTime kStart = SteadyTime() + std::chrono::hours(1);

TEST(DrainRateTest, IsNotKnownBeforeAnybodyHasLeft) {
  DrainRate rate;
  EXPECT_EQ(rate.TimeFor(1, kStart), std::nullopt);
  rate.Update(0, kStart);
  EXPECT_EQ(rate.TimeFor(1, kStart + seconds(5)), std::nullopt);
}

TEST(DrainRateTest, IsThatOfTheLastWindow) {
  DrainRate rate(seconds(10));
  rate.Update(0, kStart);
  int64_t total = 0;
  SteadyTime now = kStart;
  // A hundred in a second, for a minute; then one in a second.
  for (int i = 0; i < 6000; ++i) rate.Update(++total, now += milliseconds(10));
  EXPECT_NEAR(static_cast<double>(rate.TimeFor(50, now)->count()), 500, 25);
  for (int i = 0; i < 60; ++i) rate.Update(++total, now += seconds(1));
  EXPECT_NEAR(static_cast<double>(rate.TimeFor(50, now)->count()), 50000, 5000);
}

TEST(DrainRateTest, FallsWhileNobodyLeaves) {
  DrainRate rate(seconds(10));
  rate.Update(0, kStart);
  rate.Update(10, kStart + seconds(1));
  EXPECT_EQ(rate.TimeFor(10, kStart + seconds(1)), seconds(1));
  EXPECT_EQ(rate.TimeFor(10, kStart + seconds(30)), seconds(30));
}

}  // namespace
}  // namespace selfsame::decoder
