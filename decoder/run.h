#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace selfsame::decoder {

using OpsFactory = std::function<absl::StatusOr<std::unique_ptr<Ops>>(const BackendOptions&)>;

// The decoder as a process: reads flags, serves until SIGTERM or SIGINT or until the device is
// lost, and returns the exit status. `create_ops` makes what the model runs on; the program passes
// CreateOps, tests pass devices that fail.
int RunDecoder(int argc, char** argv, const OpsFactory& create_ops);

}  // namespace selfsame::decoder
