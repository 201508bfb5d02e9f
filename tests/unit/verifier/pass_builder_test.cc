#include "verifier/engine/pass_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace selfsame::verifier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Ms = std::chrono::milliseconds;

SteadyTime At(int ms) { return SteadyTime(Ms(ms)); }

Demand Prefill(uint64_t order, int32_t rows, int waiting_since_ms = 0) {
  return {.order = order,
          .prefill_rows = rows,
          .window_rows = {},
          .waiting_since = At(waiting_since_ms)};
}

Demand Windows(uint64_t order, std::vector<int32_t> rows, int waiting_since_ms = 0) {
  return {.order = order,
          .prefill_rows = 0,
          .window_rows = std::move(rows),
          .waiting_since = At(waiting_since_ms)};
}

int32_t RowsOf(const PassPlan& plan) {
  int32_t rows = 0;
  for (const PlannedRun& run : plan.runs) rows += run.row_count;
  return rows;
}

int32_t PrefillRowsOf(const PassPlan& plan) {
  int32_t rows = 0;
  for (const PlannedRun& run : plan.runs) rows += run.prefill_rows;
  return rows;
}

std::vector<uint64_t> OrdersOf(const PassPlan& plan) {
  std::vector<uint64_t> orders;
  for (const PlannedRun& run : plan.runs) orders.push_back(run.order);
  return orders;
}

TEST(PassBuilder, NothingToDoNeedsNoWakeUp) {
  PassBuilder builder(64, Ms(2));
  const PassPlan plan = builder.Build({}, At(100));
  EXPECT_THAT(plan.runs, IsEmpty());
  EXPECT_FALSE(plan.wake_at.has_value());
}

TEST(PassBuilder, WaitsForTheOldestRowsBudget) {
  PassBuilder builder(64, Ms(2));
  const std::vector<Demand> demands{Windows(1, {8}, 101), Prefill(2, 8, 100)};
  const PassPlan early = builder.Build(demands, At(101));
  EXPECT_THAT(early.runs, IsEmpty());
  EXPECT_EQ(early.wake_at, At(102));
  EXPECT_EQ(RowsOf(builder.Build(demands, At(102))), 16);
}

TEST(PassBuilder, AFullPassDoesNotWait) {
  PassBuilder builder(64, Ms(1000));
  EXPECT_EQ(RowsOf(builder.Build(std::vector<Demand>{Prefill(1, 64)}, At(0))), 64);
}

TEST(PassBuilder, WithoutAWaitBudgetAnIdleDeviceStartsAtOnce) {
  PassBuilder builder(64, Ms(0));
  EXPECT_EQ(RowsOf(builder.Build(std::vector<Demand>{Windows(1, {3})}, At(0))), 3);
}

TEST(PassBuilder, WindowsGoFirstOldestFirst) {
  PassBuilder builder(64, Ms(0));
  const std::vector<Demand> demands{Prefill(1, 4, 0), Windows(2, {8}, 20), Windows(3, {8}, 10)};
  const PassPlan plan = builder.Build(demands, At(50));
  EXPECT_THAT(OrdersOf(plan), ElementsAre(3, 2, 1));
  EXPECT_EQ(plan.runs[0].window_count, 1);
  EXPECT_EQ(plan.runs[2].prefill_rows, 4);
}

TEST(PassBuilder, ContiguousWindowsAreOneRun) {
  PassBuilder builder(64, Ms(0));
  const PassPlan plan = builder.Build(std::vector<Demand>{Windows(1, {16, 16, 5})}, At(0));
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.runs[0].window_count, 3);
  EXPECT_EQ(plan.runs[0].row_count, 37);
}

TEST(PassBuilder, WindowsAreNeverCut) {
  PassBuilder builder(64, Ms(0));
  const PassPlan plan = builder.Build(
      std::vector<Demand>{Windows(1, {40, 40}, 0), Windows(2, {30}, 1), Windows(3, {20}, 2)},
      At(10));
  EXPECT_THAT(OrdersOf(plan), ElementsAre(1, 3));
  EXPECT_EQ(plan.runs[0].window_count, 1);
}

TEST(PassBuilder, PrefillKeepsAQuarterWhileItWaits) {
  PassBuilder builder(64, Ms(0));
  std::vector<Demand> demands{Prefill(100, 500, 50)};
  for (uint64_t i = 0; i < 16; ++i) demands.push_back(Windows(i, {8, 8}, 0));
  const PassPlan plan = builder.Build(demands, At(60));
  EXPECT_EQ(PrefillRowsOf(plan), 16);
  EXPECT_EQ(RowsOf(plan), 64);
}

TEST(PassBuilder, AShortPrefillReservesOnlyWhatItNeeds) {
  PassBuilder builder(64, Ms(0));
  std::vector<Demand> demands{Prefill(100, 4, 0)};
  for (uint64_t i = 0; i < 16; ++i) demands.push_back(Windows(i, {10}, 0));
  const PassPlan plan = builder.Build(demands, At(60));
  EXPECT_EQ(PrefillRowsOf(plan), 4);
  EXPECT_EQ(RowsOf(plan), 64);
}

TEST(PassBuilder, PrefillFillsWhatWindowsLeave) {
  PassBuilder builder(64, Ms(0));
  const PassPlan plan =
      builder.Build(std::vector<Demand>{Prefill(1, 500, 0), Windows(2, {8}, 0)}, At(1));
  EXPECT_EQ(PrefillRowsOf(plan), 56);
}

TEST(PassBuilder, PrefillIsCutOldestFirst) {
  PassBuilder builder(64, Ms(0));
  const PassPlan plan =
      builder.Build(std::vector<Demand>{Prefill(1, 40, 5), Prefill(2, 40, 1)}, At(9));
  ASSERT_THAT(OrdersOf(plan), ElementsAre(2, 1));
  EXPECT_EQ(plan.runs[0].prefill_rows, 40);
  EXPECT_EQ(plan.runs[1].prefill_rows, 24);
}

TEST(PassBuilder, WindowsOfAWholePassAndPrefillTakeTurns) {
  PassBuilder builder(64, Ms(0));
  const std::vector<Demand> demands{Prefill(1, 1000, 0), Windows(2, {64}, 0)};
  int32_t window_passes = 0;
  int32_t prefill_passes = 0;
  for (int i = 0; i < 10; ++i) {
    const PassPlan plan = builder.Build(demands, At(i));
    EXPECT_EQ(RowsOf(plan), 64);
    (PrefillRowsOf(plan) > 0 ? prefill_passes : window_passes) += 1;
  }
  EXPECT_EQ(window_passes, 5);
  EXPECT_EQ(prefill_passes, 5);
}

TEST(PassBuilder, AWindowWaitsWhileItsSessionPrefills) {
  PassBuilder builder(64, Ms(0));
  Demand demand = Prefill(1, 10, 0);
  demand.window_rows = {8};
  const PassPlan plan = builder.Build(std::vector<Demand>{demand}, At(0));
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.runs[0].prefill_rows, 10);
  EXPECT_EQ(plan.runs[0].window_count, 0);
}

TEST(PassBuilder, WindowsBehindAnEndAreLeftOut) {
  PassBuilder builder(64, Ms(0));
  const PassPlan plan = builder.Build(std::vector<Demand>{Windows(1, {8, 0, 0})}, At(0));
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.runs[0].window_count, 1);
}

TEST(Rungs, TheSmallestThatFitsIsChosen) {
  const std::vector<int32_t> rungs{1, 8, 64};
  EXPECT_EQ(RungFor(rungs, 1), 1);
  EXPECT_EQ(RungFor(rungs, 2), 8);
  EXPECT_EQ(RungFor(rungs, 8), 8);
  EXPECT_EQ(RungFor(rungs, 9), 64);
}

}  // namespace
}  // namespace selfsame::verifier
