#include "common/sampling/logit_rules.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "common/errors.h"
#include "common/limits.h"

namespace selfsame {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

absl::Status Validate(const LogitRules& rules) { return ValidateLogitRules(rules, 10, 100); }

void ExpectRefused(const absl::Status& status, const std::string& field, std::string_view limit) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_EQ(FieldOf(status), field);
  EXPECT_NE(std::string(status.message()).find(limit), std::string::npos) << status;
}

TEST(LogitRulesTest, AcceptsEverythingWithinItsBounds) {
  EXPECT_TRUE(Validate({}).ok());
  EXPECT_TRUE(Validate({.repetition_penalty = 0.01f,
                        .presence_penalty = -2.0f,
                        .frequency_penalty = 2.0f,
                        .logit_bias = {{0, -100.0f}, {99, 100.0f}},
                        .min_tokens = 10})
                  .ok());
  for (const float min_p : {0.0f, 0.05f, 1.0f}) EXPECT_TRUE(ValidateMinP(min_p).ok());
  for (const float temperature : {0.0f, kMinTemperature, 1.0f, kMaxTemperature}) {
    EXPECT_TRUE(ValidateTemperature(temperature).ok());
  }
}

TEST(LogitRulesTest, NamesFieldAndLimitOfWhatItRefuses) {
  for (const float bad : {0.0f, -1.0f, kNan, kInfinity}) {
    ExpectRefused(Validate({.repetition_penalty = bad}), "sampling.repetition_penalty", "above 0");
  }
  for (const float bad : {-2.001f, 2.001f, kNan, -kInfinity}) {
    ExpectRefused(Validate({.presence_penalty = bad}), "sampling.presence_penalty", "-2 and 2");
    ExpectRefused(Validate({.frequency_penalty = bad}), "sampling.frequency_penalty", "-2 and 2");
  }
  for (const float bad : {-100.5f, 101.0f, kNan, kInfinity}) {
    ExpectRefused(Validate({.logit_bias = {{7, bad}}}), "sampling.logit_bias[7]", "-100 and 100");
  }
  for (const int32_t bad : {-1, 100}) {
    ExpectRefused(Validate({.logit_bias = {{bad, 1.0f}}}), "sampling.logit_bias", "0 to 99");
  }
  const LogitRules many{.logit_bias = std::vector<LogitBias>(kMaxLogitBiases + 1)};
  ExpectRefused(Validate(many), "sampling.logit_bias", "the limit is 1024");
  for (const int32_t bad : {-1, 11}) {
    ExpectRefused(Validate({.min_tokens = bad}), "stop.min_tokens", "10");
  }
  for (const float bad : {-0.1f, 1.1f, kNan}) {
    ExpectRefused(ValidateMinP(bad), "sampling.min_p", "0 (off) and 1");
  }
  for (const float bad : {-1.0f, 1e-5f, 101.0f, kNan}) {
    ExpectRefused(ValidateTemperature(bad), "sampling.temperature", "0 (greedy)");
  }
}

TEST(LogitRulesTest, BiasesOfAMapAreSorted) {
  const std::map<int32_t, float, std::greater<>> map = {{1, 0.5f}, {9, 2.0f}, {4, -1.0f}};
  EXPECT_EQ(SortedBiases(map), (std::vector<LogitBias>{{1, 0.5f}, {4, -1.0f}, {9, 2.0f}}));
}

}  // namespace
}  // namespace selfsame
