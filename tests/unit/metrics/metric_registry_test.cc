#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "common/metrics/metrics.h"

namespace selfsame {
namespace {

using ::testing::ElementsAre;

std::vector<uint64_t> Buckets(const Histogram& histogram) {
  std::vector<uint64_t> buckets;
  for (size_t i = 0; i <= histogram.bounds().size(); ++i) {
    buckets.push_back(histogram.bucket_count(i));
  }
  return buckets;
}

TEST(HistogramTest, BoundsAreInclusiveAndTheLastBucketIsOpen) {
  Histogram histogram({1.0, 2.0, 4.0});
  for (const double value : {0.0, 1.0, 1.5, 2.0, 4.0, 4.5, 1000.0}) histogram.Observe(value);
  EXPECT_THAT(Buckets(histogram), ElementsAre(2, 2, 1, 2));
  EXPECT_EQ(histogram.sum(), 1013.0);
}

TEST(HistogramTest, OneObservationCanCountSeveralTimes) {
  Histogram histogram({1.0});
  histogram.Observe(0.5, 3);
  EXPECT_THAT(Buckets(histogram), ElementsAre(3, 0));
  EXPECT_EQ(histogram.sum(), 1.5);
}

TEST(HistogramTest, NothingIsLostBetweenThreads) {
  constexpr int kThreads = 4;
  constexpr int kObservations = 20000;
  Counter counter;
  Histogram histogram({1.0});
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kObservations; ++j) {
        counter.Increment();
        histogram.Observe(j % 2 == 0 ? 1.0 : 2.0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), kThreads * kObservations);
  EXPECT_THAT(Buckets(histogram),
              ElementsAre(kThreads * kObservations / 2, kThreads * kObservations / 2));
  EXPECT_EQ(histogram.sum(), kThreads * kObservations * 1.5);
}

TEST(MetricRegistryTest, MetricsOfOneNameAreOneFamilyInOrder) {
  MetricRegistry registry;
  Counter& ok = registry.AddCounter("requests_total", "Requests.", {{"outcome", "ok"}});
  registry.AddGauge("running", "Running.").Set(2.5);
  Counter& lost = registry.AddCounter("requests_total", "Requests.", {{"outcome", "lost"}});
  ok.Increment();
  lost.Increment(2);
  std::vector<std::string> seen;
  registry.ForEachFamily([&](const MetricRegistry::Family& family) {
    for (const auto& metric : family.metrics) {
      const double value =
          metric.counter ? static_cast<double>(metric.counter->value()) : metric.gauge->value();
      seen.push_back(family.name + " " + (metric.labels.empty() ? "" : metric.labels[0].second) +
                     " " + std::to_string(value));
    }
  });
  EXPECT_THAT(seen, ElementsAre("requests_total ok 1.000000", "requests_total lost 2.000000",
                                "running  2.500000"));
}

TEST(MetricRegistryDeathTest, WhatPrometheusWouldRefuseIsABrokenInvariant) {
  MetricRegistry registry;
  registry.AddCounter("twice", "");
  EXPECT_DEATH(registry.AddCounter("twice", ""), "");
  EXPECT_DEATH(registry.AddGauge("twice", "", {{"label", "value"}}), "");
  EXPECT_DEATH(registry.AddCounter("0digit", ""), "");
  EXPECT_DEATH(registry.AddCounter("", ""), "");
  EXPECT_DEATH(registry.AddCounter("fine", "", {{"not-a-label", ""}}), "");
}

}  // namespace
}  // namespace selfsame
