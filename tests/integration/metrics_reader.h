#pragma once

#include <string>

#include "tests/integration/child_process.h"

namespace selfsame::testing {

// Reads "metrics on HOST:PORT", the line after the address, of a service with --metrics_listen;
// empty, with a failure, when there is none.
std::string MetricsAddress(ChildProcess& process);

// The sum of a metric's samples whose labels hold `label`, as the service at `address` tells it
// now; -1 when there are none.
double ReadMetric(const std::string& address, const std::string& name,
                  const std::string& label = "");

}  // namespace selfsame::testing
