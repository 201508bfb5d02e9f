#pragma once

// What the backend needs to know of a GPU.

#include <string>

#include "absl/status/statusor.h"

namespace selfsame::cuda {

struct DeviceInfo {
  std::string name;
  int processor_count = 0;  // multiprocessors
  int capability = 0;       // 10 * major + minor

  // What bits depend on beside the kernels: device product, multiprocessors, library versions.
  std::string Scope() const;
};

// Makes device `index` the thread's current one. FAILED_PRECONDITION when there is none, or it is
// older than compute capability 8.0.
absl::StatusOr<DeviceInfo> OpenDevice(int index);

}  // namespace selfsame::cuda
