#include "common/metrics/metrics.h"

#include <algorithm>

#include "common/check.h"

namespace selfsame {
namespace {

// A valid name starts with a letter or '_' and goes on with those, digits, or, outside labels, ':'.
bool IsValidName(const std::string& name, bool is_label) {
  const auto is_valid = [is_label](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (c == ':' && !is_label);
  };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), is_valid);
}

bool IsSameType(const MetricRegistry::Metric& a, const MetricRegistry::Metric& b) {
  return (a.counter != nullptr) == (b.counter != nullptr) &&
         (a.gauge != nullptr) == (b.gauge != nullptr);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(bounds_.size() + 1) {
  SELFSAME_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::Observe(double value, uint64_t count) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[static_cast<size_t>(bucket)].fetch_add(count, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(count), std::memory_order_relaxed);
}

std::vector<double> DurationBounds() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
          0.1,    0.25,    0.5,    1.0,   2.5,    5.0,   10.0, 30.0,  60.0};
}

std::vector<double> CountBounds() {
  std::vector<double> bounds;
  for (int bound = 1; bound <= 4096; bound *= 2) bounds.push_back(bound);
  return bounds;
}

Counter& MetricRegistry::AddCounter(const std::string& name, const std::string& help,
                                    MetricLabels labels) {
  Metric metric;
  metric.labels = std::move(labels);
  metric.counter = std::make_unique<Counter>();
  MutexLock lock(mutex_);
  return *Add(name, help, std::move(metric)).counter;
}

Gauge& MetricRegistry::AddGauge(const std::string& name, const std::string& help,
                                MetricLabels labels) {
  Metric metric;
  metric.labels = std::move(labels);
  metric.gauge = std::make_unique<Gauge>();
  MutexLock lock(mutex_);
  return *Add(name, help, std::move(metric)).gauge;
}

Histogram& MetricRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        std::vector<double> bounds, MetricLabels labels) {
  Metric metric;
  metric.labels = std::move(labels);
  metric.histogram = std::make_unique<Histogram>(std::move(bounds));
  MutexLock lock(mutex_);
  return *Add(name, help, std::move(metric)).histogram;
}

MetricRegistry::Metric& MetricRegistry::Add(const std::string& name, const std::string& help,
                                            Metric metric) {
  SELFSAME_CHECK(IsValidName(name, false));
  for (const auto& [label, value] : metric.labels) SELFSAME_CHECK(IsValidName(label, true));
  auto family = std::find_if(families_.begin(), families_.end(),
                             [&name](const Family& other) { return other.name == name; });
  if (family == families_.end()) {
    family = families_.insert(families_.end(), Family{name, help, {}});
  }
  for (const Metric& other : family->metrics) {
    SELFSAME_CHECK(IsSameType(other, metric) && other.labels != metric.labels);
  }
  return family->metrics.emplace_back(std::move(metric));
}

}  // namespace selfsame
