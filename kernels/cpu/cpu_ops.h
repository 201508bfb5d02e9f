#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame {

struct CpuOptions {
  Schedule schedule = Schedule::kFast;
  // Threads that work on an op, the caller's own included. 0: one for each CPU the process may use.
  int thread_count = 0;
};

// FAILED_PRECONDITION on a CPU without fused multiply-add (x86: AVX2 and FMA).
absl::StatusOr<std::unique_ptr<Ops>> CreateCpuOps(const CpuOptions& options);

}  // namespace selfsame
