#include "decoder/client/check_report.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace selfsame::client {
namespace {

using ::testing::HasSubstr;

CheckResult MakeResult() {
  PhaseFigures alone;
  alone.name = "one at a time";
  alone.deterministic = {.requests = 4, .output_tokens = 400};
  alone.windows = 10;
  alone.rollbacks = 1;
  alone.rolled_back_tokens = 3;
  alone.redecoded_tokens = 2;
  alone.cached_prompt_tokens = 48;
  alone.verifier_cached_prompt_tokens = 32;
  alone.seconds = 4.0;
  PhaseFigures busy = alone;
  busy.name = "8 at a time";
  busy.concurrency = 8;
  busy.ordinary = {.requests = 5,
                   .divergences = 3,
                   .logprob_divergences = 4,
                   .output_tokens = 500,
                   .first_positions = {30, 10, 20}};
  busy.seconds = 1.0;
  CheckResult result;
  result.model = "model";
  result.fingerprint = "fp";
  result.phases = {alone, busy};
  return result;
}

TEST(CheckReportTest, JsonHasTheTotalsUnderTheirNames) {
  const auto json = nlohmann::json::parse(ToJson(MakeResult(), "selfsame check", "today"));
  EXPECT_EQ(json["deterministic_requests"], 8);
  EXPECT_EQ(json["deterministic_divergences"], 0);
  EXPECT_EQ(json["ordinary_requests"], 5);
  EXPECT_EQ(json["ordinary_divergences"], 3);
  EXPECT_EQ(json["windows"], 20);
  EXPECT_EQ(json["rollbacks"], 2);
  EXPECT_EQ(json["rolled_back_tokens"], 6);
  EXPECT_EQ(json["redecoded_tokens"], 4);
  EXPECT_EQ(json["cached_prompt_tokens"], 96);
  EXPECT_EQ(json["verifier_cached_prompt_tokens"], 64);
  EXPECT_EQ(json["committed_tokens"], 800);
  EXPECT_EQ(json["fingerprint"], "fp");
  EXPECT_EQ(json["first_divergent_position"]["ordinary"]["min"], 10);
  EXPECT_EQ(json["first_divergent_position"]["ordinary"]["median"], 20);
  EXPECT_TRUE(json["first_divergent_position"]["deterministic"].is_null());
  EXPECT_EQ(json["tokens_per_second"], 1300.0 / 5.0);
  ASSERT_EQ(json["phases"].size(), 2u);
  EXPECT_EQ(json["phases"][1]["tokens_per_second"], 900.0);
  EXPECT_EQ(json["phases"][1]["concurrency"], 8);
}

TEST(CheckReportTest, TheTableHasARowAPhaseAndTheTotals) {
  const std::string table = ToTable(MakeResult());
  EXPECT_THAT(table, HasSubstr("one at a time"));
  EXPECT_THAT(table, HasSubstr("8 at a time"));
  EXPECT_THAT(table, HasSubstr("total"));
  EXPECT_THAT(table, HasSubstr("ordinary: 10 at the earliest, median 20"));
}

}  // namespace
}  // namespace selfsame::client
