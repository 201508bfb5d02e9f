#include "bench/serve/load_report.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace selfsame::bench {
namespace {

TEST(LoadReportTest, PercentilesAreNearestRanks) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(Percentile(values, 50), 50.0);
  EXPECT_EQ(Percentile(values, 99), 99.0);
  EXPECT_EQ(Percentile(values, 100), 100.0);
  EXPECT_EQ(Percentile({3.0}, 99), 3.0);
  EXPECT_EQ(Percentile({}, 50), 0.0);
}

TEST(LoadReportTest, TimesOfARequestCountFromItsArrival) {
  using std::chrono::milliseconds;
  client::Answer answer;
  const client::SteadyTime arrival{};
  answer.sent = arrival + milliseconds(50);
  answer.first_token = arrival + milliseconds(100);
  answer.last_token = arrival + milliseconds(400);
  answer.token_ids.resize(4);
  const LoadSample sample = ToSample(answer, false, arrival);
  EXPECT_DOUBLE_EQ(sample.seconds_to_first_token, 0.1);
  EXPECT_DOUBLE_EQ(sample.seconds_in_all, 0.4);
  EXPECT_DOUBLE_EQ(sample.seconds_per_output_token, 0.1);
}

TEST(LoadReportTest, JsonKeepsTheKindsApartAndAddsThemUp) {
  LoadResult result;
  result.seconds = 2.0;
  result.errors = 1;
  result.samples = {{.is_deterministic = true,
                     .seconds_to_first_token = 0.2,
                     .output_tokens = 10,
                     .windows = 4,
                     .rollbacks = 1,
                     .rolled_back_tokens = 6,
                     .redecoded_tokens = 5,
                     .cached_prompt_tokens = 48,
                     .verifier_cached_prompt_tokens = 32},
                    {.seconds_to_first_token = 0.1, .output_tokens = 30}};
  const auto json = nlohmann::json::parse(ToJson(result, "serve_bench", "today"));
  EXPECT_EQ(json["errors"], 1);
  EXPECT_EQ(json["all"]["requests"], 2);
  EXPECT_EQ(json["all"]["output_tokens_per_second"], 20.0);
  EXPECT_EQ(json["deterministic"]["rollbacks"], 1);
  EXPECT_EQ(json["deterministic"]["redecoded_tokens"], 5);
  EXPECT_EQ(json["deterministic"]["cached_prompt_tokens"], 48);
  EXPECT_EQ(json["deterministic"]["verifier_cached_prompt_tokens"], 32);
  EXPECT_EQ(json["ordinary"]["rollbacks"], 0);
  EXPECT_EQ(json["ordinary"]["time_to_first_token_ms"]["p99"], 100.0);
}

}  // namespace
}  // namespace selfsame::bench
