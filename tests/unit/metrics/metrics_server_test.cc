#include "common/metrics/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/http_get.h"

namespace selfsame {
namespace {

using ::testing::HasSubstr;
using testing::HttpGet;

TEST(MetricsServerTest, ServesValuesAsTheyAreInPrometheusFormat) {
  MetricRegistry registry;
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  Counter& counter = registry.AddCounter("a_total", "Help \\ with\nall.", {{"kind", "x\"y"}});
  registry.AddGauge("b", "B.").Set(0.25);
  Histogram& histogram = registry.AddHistogram("c_seconds", "C.", {0.5, 1.0});
  counter.Increment(3);
  for (const double value : {0.5, 0.75, 3.0}) histogram.Observe(value);

  auto text = HttpGet((*server)->address(), "/metrics");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("# TYPE a_total counter\na_total{kind=\"x\\\"y\"} 3\n"));
  EXPECT_THAT(*text, HasSubstr("# TYPE b gauge\nb 0.25\n"));
  EXPECT_THAT(*text, HasSubstr("c_seconds_count 3\nc_seconds_sum 4.25\n"
                               "c_seconds_bucket{le=\"0.5\"} 1\n"
                               "c_seconds_bucket{le=\"1\"} 2\n"
                               "c_seconds_bucket{le=\"+Inf\"} 3\n"));

  counter.Increment();
  text = HttpGet((*server)->address(), "/metrics");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("a_total{kind=\"x\\\"y\"} 4\n"));
}

TEST(MetricsServerTest, OtherPathsAreNotFound) {
  MetricRegistry registry;
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(HttpGet((*server)->address(), "/").status().message(), HasSubstr("404"));
}

TEST(MetricsServerTest, AddressInUseIsAnErrorThatNamesIt) {
  MetricRegistry registry;
  auto first = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsServer::Start((*first)->address(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr((*first)->address()));
}

TEST(MetricsServerTest, ForeignAddressIsAnErrorThatNamesIt) {
  MetricRegistry registry;
  const auto server = MetricsServer::Start("203.0.113.1:0", registry);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(server.status().message(), HasSubstr("203.0.113.1:0"));
}

TEST(MetricsServerTest, EmptyFlagMeansNone) {
  MetricRegistry registry;
  const auto none = ServeMetrics("", registry);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
  EXPECT_THAT(ServeMetrics("9090", registry).status().message(), HasSubstr("--metrics_listen"));
}

}  // namespace
}  // namespace selfsame
