#include "decoder/client/check_plan.h"

#include <algorithm>
#include <set>

#include "common/errors.h"
#include "decoder/client/check_prompts.h"
#include "gtest/gtest.h"

namespace selfsame::client {
namespace {

TEST(CheckPlanTest, ReadsPhases) {
  const auto phases = ParsePhases("2:0.5,16:0,1:0.98");
  ASSERT_TRUE(phases.ok()) << phases.status();
  ASSERT_EQ(phases->size(), 3u);
  EXPECT_EQ((*phases)[0].concurrency, 2);
  EXPECT_EQ((*phases)[0].ordinary_share, 0.5);
  EXPECT_EQ((*phases)[1].concurrency, 16);
  EXPECT_EQ((*phases)[2].ordinary_share, 0.98);
  EXPECT_TRUE(ParsePhases("")->empty());
}

TEST(CheckPlanTest, RefusesMalformedPhases) {
  for (const char* text :
       {"x", "2", "2:", ":0.5", "0:0.5", "-1:0.5", "2:1", "2:-0.1", "2:nan", "1000000:0", "2:0,"}) {
    const auto phases = ParsePhases(text);
    EXPECT_EQ(phases.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(FieldOf(phases.status()), "--phases") << text;
  }
}

TEST(CheckPlanTest, EveryCaseIsAskedOnceDeterministicallyAmongTheOrdinaryShare) {
  const std::vector<Job> jobs = PlanJobs(20, {.concurrency = 4, .ordinary_share = 0.75}, 1);
  std::vector<int> deterministic(20);
  std::vector<int> ordinary(20);
  for (const Job& job : jobs) ++(job.is_deterministic ? deterministic : ordinary)[job.case_index];
  EXPECT_EQ(deterministic, std::vector<int>(20, 1));
  EXPECT_EQ(ordinary, std::vector<int>(20, 3));
}

TEST(CheckPlanTest, TheOrderDependsOnTheSeedAlone) {
  const auto order = [](uint64_t seed) {
    std::vector<std::pair<size_t, bool>> result;
    for (const Job& job : PlanJobs(20, {.concurrency = 4, .ordinary_share = 0.5}, seed)) {
      result.emplace_back(job.case_index, job.is_deterministic);
    }
    return result;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(CheckPlanTest, TheBuiltInSetIsLargeVariedAndHalfSeeded) {
  const std::vector<std::string> prompts = BuiltInPrompts();
  EXPECT_GE(prompts.size(), 24u);
  EXPECT_EQ(std::set<std::string>(prompts.begin(), prompts.end()).size(), prompts.size());
  const std::vector<CheckCase> cases = BuildCases(prompts, {});
  const auto greedy = std::count_if(cases.begin(), cases.end(),
                                    [](const CheckCase& c) { return c.temperature == 0.0f; });
  EXPECT_EQ(static_cast<size_t>(greedy), cases.size() / 2);
  const auto count = [&](auto is_such) {
    return std::count_if(cases.begin(), cases.end(), is_such);
  };
  EXPECT_GE(count([](const CheckCase& c) {
              return c.repetition_penalty != 1.0f && c.presence_penalty != 0.0f &&
                     c.frequency_penalty != 0.0f && c.temperature == 0.0f;
            }),
            3);
  EXPECT_GE(count([](const CheckCase& c) { return c.min_p > 0.0f && c.temperature > 0.0f; }), 3);
  for (const bool seeded : {false, true}) {
    EXPECT_GE(count([&](const CheckCase& c) {
                return c.prompt_logprobs.has_value() && (c.temperature > 0.0f) == seeded;
              }),
              3);
  }
  std::set<uint64_t> seeds;
  for (const CheckCase& check_case : cases) seeds.insert(check_case.seed);
  EXPECT_EQ(seeds.size(), cases.size());
}

TEST(CheckPlanTest, HalfOfEitherKindSharesAPrefixIfAskedTo) {
  const std::vector<std::string> prompts = BuiltInPrompts();
  const std::vector<CheckCase> cases = BuildCases(prompts, {.shared_prefix = true});
  int shared[2] = {};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string& text = cases[i].prompt;
    ASSERT_EQ(text.substr(text.size() - prompts[i].size()), prompts[i]);
    if (text != prompts[i]) ++shared[cases[i].temperature > 0.0f ? 1 : 0];
  }
  EXPECT_EQ(shared[0], static_cast<int>(prompts.size() / 4));
  EXPECT_EQ(shared[1], static_cast<int>(prompts.size() / 4));
}

TEST(CheckPlanTest, ARequestLeavesNothingToTheServersDefaults) {
  const std::vector<CheckCase> cases = BuildCases({"a", "b"}, {.max_tokens = 7});
  const Request request = ToRequest(cases[1], true);
  EXPECT_TRUE(request.is_deterministic);
  EXPECT_TRUE(request.logprobs);
  EXPECT_TRUE(request.temperature && request.top_k && request.top_p && request.seed);
  EXPECT_TRUE(request.min_p && request.repetition_penalty && request.presence_penalty &&
              request.frequency_penalty);
  EXPECT_EQ(request.max_tokens, 7);
}

}  // namespace
}  // namespace selfsame::client
