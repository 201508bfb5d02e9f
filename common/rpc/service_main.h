#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/metrics/metrics_server.h"
#include "common/process/shutdown_signal.h"

namespace selfsame {

// The frame of a service's main: parses the flags and refuses other arguments, prepares signals and
// logs, and runs `serve`. Returns the exit status; an error is one line on standard error.
int RunService(const char* program, const char* usage, int argc, char** argv,
               absl::FunctionRef<absl::Status(ShutdownSignal&)> serve);

// Says on standard output that the service serves: `listening on HOST:PORT`, and with a metrics
// server `metrics on HOST:PORT`.
void PrintAddresses(const std::string& address, const MetricsServer* metrics_server);

}  // namespace selfsame
