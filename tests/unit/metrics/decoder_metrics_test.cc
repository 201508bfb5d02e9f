#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "decoder/metrics.h"

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;

class DecoderMetricsTest : public ::testing::Test {
 protected:
  const MetricRegistry::Metric* Find(const std::string& name, const MetricLabels& labels = {}) {
    const MetricRegistry::Metric* found = nullptr;
    registry_.ForEachFamily([&](const MetricRegistry::Family& family) {
      for (const auto& metric : family.metrics) {
        if (family.name == name && metric.labels == labels) found = &metric;
      }
    });
    return found;
  }
  uint64_t Count(const std::string& name, const MetricLabels& labels = {}) {
    const auto* metric = Find(name, labels);
    return metric == nullptr || !metric->counter ? ~uint64_t{0} : metric->counter->value();
  }
  uint64_t Observations(const std::string& name, const MetricLabels& labels = {}) {
    const auto* metric = Find(name, labels);
    if (metric == nullptr || !metric->histogram) return ~uint64_t{0};
    uint64_t count = 0;
    for (size_t i = 0; i <= metric->histogram->bounds().size(); ++i) {
      count += metric->histogram->bucket_count(i);
    }
    return count;
  }

  MetricRegistry registry_;
  DecoderMetrics metrics_{registry_};
  const MetricLabels deterministic_{{"is_deterministic", "true"}};
  const MetricLabels ordinary_{{"is_deterministic", "false"}};
};

TEST_F(DecoderMetricsTest, TokensThatComeTogetherShareTheTime) {
  metrics_.OnTokens({.is_deterministic = true,
                     .token_count = 1,
                     .is_first = true,
                     .since = milliseconds(200),
                     .prompt_length = 7});
  metrics_.OnTokens({.is_deterministic = true, .token_count = 4, .since = milliseconds(100)});
  EXPECT_EQ(Count("selfsame_prompt_tokens_total", deterministic_), 7u);
  EXPECT_EQ(Count("selfsame_generation_tokens_total", deterministic_), 5u);
  EXPECT_EQ(Count("selfsame_generation_tokens_total", ordinary_), 0u);
  EXPECT_EQ(Observations("selfsame_time_to_first_token_seconds", deterministic_), 1u);
  EXPECT_EQ(Observations("selfsame_inter_token_latency_seconds", deterministic_), 4u);
  const auto* gaps = Find("selfsame_inter_token_latency_seconds", deterministic_);
  EXPECT_DOUBLE_EQ(gaps->histogram->sum(), 0.1);
}

TEST_F(DecoderMetricsTest, EndsAndRefusalsCountByOutcomeAndKind) {
  metrics_.OnEnd({.is_deterministic = true, .reason = FinishReason::kLength});
  metrics_.OnEnd({.is_deterministic = false, .code = absl::StatusCode::kCancelled});
  metrics_.OnRefused(true, absl::StatusCode::kResourceExhausted);
  const auto requests = [this](const char* outcome, const char* is_deterministic) {
    return Count("selfsame_requests_total",
                 {{"outcome", outcome}, {"is_deterministic", is_deterministic}});
  };
  EXPECT_EQ(requests("ok", "true"), 1u);
  EXPECT_EQ(requests("cancelled", "false"), 1u);
  EXPECT_EQ(requests("resource_exhausted", "true"), 1u);
  EXPECT_EQ(requests("ok", "false"), 0u);
  EXPECT_EQ(Count("selfsame_request_success_total", {{"finished_reason", "length"}}), 1u);
  EXPECT_EQ(Count("selfsame_request_success_total", {{"finished_reason", "stop"}}), 0u);
  EXPECT_EQ(Observations("selfsame_e2e_request_latency_seconds", ordinary_), 0u);
}

TEST_F(DecoderMetricsTest, VerdictsAreToldApart) {
  metrics_.OnVerdict({.is_opening = true, .is_rollback = true, .dropped = 2});
  metrics_.OnVerdict(
      {.outcome = Outcome::kCommit, .latency = milliseconds(5), .network_time = milliseconds(2)});
  metrics_.OnVerdict(
      {.outcome = Outcome::kRollback, .is_rollback = true, .dropped = 9, .mismatch_index = 3});
  metrics_.OnVerdict({.outcome = Outcome::kDiscarded});
  EXPECT_EQ(Count("selfsame_windows_committed_total"), 1u);
  EXPECT_EQ(Count("selfsame_windows_discarded_total"), 1u);
  EXPECT_EQ(Count("selfsame_rollbacks_total"), 2u);
  EXPECT_EQ(Count("selfsame_rolled_back_tokens_total"), 11u);
  EXPECT_EQ(Observations("selfsame_first_mismatch_position"), 1u);
  EXPECT_EQ(Find("selfsame_first_mismatch_position")->histogram->sum(), 3.0);
  EXPECT_EQ(Observations("selfsame_session_opening_seconds"), 1u);
  EXPECT_EQ(Observations("selfsame_verify_latency_seconds"), 2u);
  EXPECT_EQ(Observations("selfsame_verify_network_seconds"), 1u);
  EXPECT_EQ(Find("selfsame_verify_network_seconds")->histogram->sum(), 0.002);
}

TEST_F(DecoderMetricsTest, MissedRowsAndStepsAreCountedApart) {
  metrics_.OnOrdinaryWait(3);
  metrics_.OnOrdinaryWait(2);
  EXPECT_EQ(Count("selfsame_ordinary_rows_waited_for_verdict_total"), 5u);
  EXPECT_EQ(Count("selfsame_steps_waited_for_verdict_total"), 2u);
}

TEST_F(DecoderMetricsTest, PreemptionsAreThoseOfTheEngine) {
  metrics_.OnStats({.preemptions = 3});
  metrics_.OnStats({.preemptions = 5});
  EXPECT_EQ(Count("selfsame_num_preemptions_total"), 5u);
}

}  // namespace
}  // namespace selfsame::decoder
