#include "common/metrics/metrics_server.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/metrics/thread_stack.h"
#include "common/process/flags.h"

namespace selfsame {
namespace {

constexpr size_t kThreadCount = 2;

prometheus::ClientMetric::Histogram Describe(const Histogram& histogram) {
  prometheus::ClientMetric::Histogram result;
  uint64_t cumulative = 0;
  for (size_t i = 0; i <= histogram.bounds().size(); ++i) {
    cumulative += histogram.bucket_count(i);
    const bool is_last = i == histogram.bounds().size();
    const double bound = is_last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i];
    result.bucket.push_back({cumulative, bound});
  }
  // The total of the buckets as read, so that the count agrees with them while others observe.
  result.sample_count = cumulative;
  result.sample_sum = histogram.sum();
  return result;
}

prometheus::ClientMetric Describe(const MetricRegistry::Metric& metric) {
  prometheus::ClientMetric result;
  for (const auto& [name, value] : metric.labels) result.label.push_back({name, value});
  if (metric.counter != nullptr) {
    result.counter.value = static_cast<double>(metric.counter->value());
  } else if (metric.gauge != nullptr) {
    result.gauge.value = metric.gauge->value();
  } else {
    result.histogram = Describe(*metric.histogram);
  }
  return result;
}

prometheus::MetricType TypeOf(const MetricRegistry::Metric& metric) {
  if (metric.counter != nullptr) return prometheus::MetricType::Counter;
  if (metric.gauge != nullptr) return prometheus::MetricType::Gauge;
  return prometheus::MetricType::Histogram;
}

class RegistryCollectable final : public prometheus::Collectable {
 public:
  explicit RegistryCollectable(const MetricRegistry& registry) : registry_(registry) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    registry_.ForEachFamily([&families](const MetricRegistry::Family& family) {
      prometheus::MetricFamily described{
          family.name, family.help, TypeOf(family.metrics.front()), {}};
      for (const auto& metric : family.metrics) described.metric.push_back(Describe(metric));
      families.push_back(std::move(described));
    });
    return families;
  }

 private:
  const MetricRegistry& registry_;
};

}  // namespace

struct MetricsServer::Exposition {
  Exposition(const std::string& listen, const MetricRegistry& registry)
      : collectable(std::make_shared<RegistryCollectable>(registry)),
        exposer(listen, kThreadCount) {
    exposer.RegisterCollectable(collectable);
  }

  const std::shared_ptr<RegistryCollectable> collectable;  // the exposer holds it weakly
  prometheus::Exposer exposer;
};

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& listen, const MetricRegistry& registry) {
  UseMinThreadStack();
  const std::string host = listen.substr(0, listen.rfind(':'));
  try {
    auto exposition = std::make_unique<Exposition>(listen, registry);
    const std::vector<int> ports = exposition->exposer.GetListeningPorts();
    if (ports.empty()) return UnavailableError(absl::StrCat("cannot listen on ", listen));
    return std::unique_ptr<MetricsServer>(
        new MetricsServer(std::move(exposition), absl::StrCat(host, ":", ports.front())));
  } catch (const std::exception&) {
    // What CivetWeb says of it names neither the address nor the reason.
    return UnavailableError(
        absl::StrCat("cannot listen on ", listen, " for metrics: in use, or no address here"));
  }
}

MetricsServer::MetricsServer(std::unique_ptr<Exposition> exposition, std::string address)
    : exposition_(std::move(exposition)), address_(std::move(address)) {}

MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(const std::string& metrics_listen,
                                                            const MetricRegistry& registry) {
  if (metrics_listen.empty()) return std::unique_ptr<MetricsServer>();
  RETURN_IF_ERROR(ParseHostPort("--metrics_listen", metrics_listen, 0).status());
  return MetricsServer::Start(metrics_listen, registry);
}

}  // namespace selfsame
