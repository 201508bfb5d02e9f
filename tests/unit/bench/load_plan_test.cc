#include "bench/serve/load_plan.h"

#include "common/errors.h"
#include "gtest/gtest.h"

namespace selfsame::bench {
namespace {

using Ids = std::vector<int32_t>;

LoadOptions MakeOptions() {
  LoadOptions options;
  options.requests = 2000;
  options.rate = 5.0;
  options.deterministic_share = 0.25;
  options.prompt_tokens = {10, 20};
  options.output_tokens = {3, 4};
  options.vocab_size = 100;
  return options;
}

TEST(LoadPlanTest, LengthsTokensAndSharesAreThoseAskedFor) {
  const std::vector<PlannedRequest> plan = PlanLoad(MakeOptions());
  ASSERT_EQ(plan.size(), 2000u);
  int deterministic = 0;
  for (const PlannedRequest& planned : plan) {
    const Ids& prompt = std::get<Ids>(planned.request.input);
    EXPECT_GE(prompt.size(), 10u);
    EXPECT_LE(prompt.size(), 20u);
    for (const int32_t token : prompt) EXPECT_TRUE(token >= 0 && token < 100);
    EXPECT_TRUE(planned.request.max_tokens == 3 || planned.request.max_tokens == 4);
    EXPECT_TRUE(planned.request.ignore_eos);
    if (planned.request.is_deterministic) ++deterministic;
  }
  EXPECT_NEAR(deterministic, 500, 80);
}

TEST(LoadPlanTest, ArrivalsGrowAtTheRate) {
  const std::vector<PlannedRequest> plan = PlanLoad(MakeOptions());
  for (size_t i = 1; i < plan.size(); ++i) EXPECT_GE(plan[i].arrival_s, plan[i - 1].arrival_s);
  EXPECT_NEAR(plan.back().arrival_s, 400.0, 40.0);
}

TEST(LoadPlanTest, AClosedLoopHasNoArrivals) {
  LoadOptions options = MakeOptions();
  options.rate = 0.0;
  for (const PlannedRequest& planned : PlanLoad(options)) EXPECT_EQ(planned.arrival_s, 0.0);
}

TEST(LoadPlanTest, TheSeedDecidesThePlan) {
  LoadOptions options = MakeOptions();
  const std::vector<PlannedRequest> first = PlanLoad(options);
  const std::vector<PlannedRequest> again = PlanLoad(options);
  options.seed = 2;
  const std::vector<PlannedRequest> other = PlanLoad(options);
  EXPECT_EQ(std::get<Ids>(first[7].request.input), std::get<Ids>(again[7].request.input));
  EXPECT_EQ(first[7].arrival_s, again[7].arrival_s);
  EXPECT_NE(std::get<Ids>(first[7].request.input), std::get<Ids>(other[7].request.input));
}

TEST(LoadPlanTest, ReadsRangesAndRefusesOthers) {
  EXPECT_EQ(ParseRange("--x", "7")->maximum, 7);
  EXPECT_EQ(ParseRange("--x", "7:9")->minimum, 7);
  EXPECT_EQ(ParseRange("--x", "7:9")->maximum, 9);
  for (const char* text : {"", "0", "-1", "9:7", "7:", ":7", "a", "7:9:11"}) {
    EXPECT_EQ(FieldOf(ParseRange("--x", text).status()), "--x") << text;
  }
}

}  // namespace
}  // namespace selfsame::bench
