#include "common/rpc/service_main.h"

#include <cstdio>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/process/flags.h"
#include "common/rpc/grpc_server.h"

namespace selfsame {

int RunService(const char* program, const char* usage, int argc, char** argv,
               absl::FunctionRef<absl::Status(ShutdownSignal&)> serve) {
  absl::SetProgramUsageMessage(usage);
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    return ReportFatal(program, InvalidArgumentError(arguments[1], "is not a flag"));
  }
  ShutdownSignal shutdown;
  InitLogging(program, LogLevel::kInfo);
  RouteLibraryLogs();
  const absl::Status status = serve(shutdown);
  return status.ok() ? 0 : ReportFatal(program, status);
}

void PrintAddresses(const std::string& address, const MetricsServer* metrics_server) {
  std::printf("listening on %s\n", address.c_str());
  if (metrics_server != nullptr) {
    std::printf("metrics on %s\n", metrics_server->address().c_str());
  }
  std::fflush(stdout);
}

}  // namespace selfsame
