#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"

namespace selfsame {

// Serves a registry's metrics over HTTP at /metrics in Prometheus's text format. Its threads read
// the values; nobody waits for them.
class MetricsServer {
 public:
  // Listens on HOST:PORT; port 0 takes a free one. UNAVAILABLE when the address cannot be had.
  // `registry` must outlive the server; metrics may be added to it later.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              const MetricRegistry& registry);
  ~MetricsServer();

  // HOST:PORT with the port really bound.
  const std::string& address() const { return address_; }

 private:
  struct Exposition;  // keeps prometheus-cpp out of this header
  MetricsServer(std::unique_ptr<Exposition> exposition, std::string address);

  std::unique_ptr<Exposition> exposition_;
  std::string address_;
};

// What a service's --metrics_listen asks for: null when it is empty. INVALID_ARGUMENT naming the
// flag when it is not HOST:PORT.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(const std::string& metrics_listen,
                                                            const MetricRegistry& registry);

}  // namespace selfsame
