#pragma once

// Counters, gauges and histograms that a process keeps of itself. Updates are relaxed atomic
// operations on handles that are looked up once, at start, so that an engine's step can afford
// them: prometheus-cpp's own histogram takes a lock for each observation, so only the exposition
// (metrics_server.h) is left to that library.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace selfsame {

// Only rises. Safe from any thread; never blocks.
class Counter {
 public:
  void Increment(uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  // REQUIRES: `total` is no less than value(); no other thread adds to the counter.
  void RaiseTo(uint64_t total) { value_.store(total, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// The newest of its values. Safe from any thread; never blocks.
class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

// How many observations fell into which bucket, and their sum. Safe from any thread; never blocks.
class Histogram {
 public:
  // `bounds` are the buckets' upper limits, inclusive and ascending; one more bucket takes what is
  // above the last.
  explicit Histogram(std::vector<double> bounds);

  // Observes `value`, `count` times.
  void Observe(double value, uint64_t count = 1);

  std::span<const double> bounds() const { return bounds_; }
  // Observations in bucket `index` alone, from 0 to bounds().size().
  uint64_t bucket_count(size_t index) const {
    return buckets_[index].load(std::memory_order_relaxed);
  }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> buckets_;  // [bounds + 1]
  std::atomic<double> sum_{0.0};
};

// Bounds for durations in seconds, from 100 microseconds to a minute, and for counts, in powers of
// two from 1 to 4096.
std::vector<double> DurationBounds();
std::vector<double> CountBounds();

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// All metrics of a process. Handles stay valid as long as the registry. Safe from any thread.
class MetricRegistry {
 public:
  // Metrics of one name form a family: they differ in the values of their labels, and share the
  // type and the first one's `help`. REQUIRES: a name and labels that Prometheus allows; one type a
  // name; no two metrics with the same name and labels.
  Counter& AddCounter(const std::string& name, const std::string& help, MetricLabels labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, MetricLabels labels = {});
  Histogram& AddHistogram(const std::string& name, const std::string& help,
                          std::vector<double> bounds, MetricLabels labels = {});

  // A metric of a family; one of the pointers is set.
  struct Metric {
    MetricLabels labels;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    std::string name;
    std::string help;
    std::vector<Metric> metrics;  // in order of addition
  };

  // Calls `visit(const Family&)` for each family in order of addition. The visitor must not add
  // metrics.
  template <typename Visitor>
  void ForEachFamily(const Visitor& visit) const {
    MutexLock lock(mutex_);
    for (const Family& family : families_) visit(family);
  }

 private:
  Metric& Add(const std::string& name, const std::string& help, Metric metric)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;  // of the list, not of the values
  std::vector<Family> families_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace selfsame
