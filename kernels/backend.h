#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame {

// Which device runs a model, and how.
struct BackendOptions {
  std::string device = "cpu";  // "cpu", "cuda" (the first visible) or "cuda:N"
  Schedule schedule = Schedule::kFast;
  int32_t thread_count = 0;  // CPU; 0: one for each CPU
  // Of a pass; the model's PassLimits must be the same.
  int32_t max_rows = 0;
  int32_t max_logit_rows = 0;
  // CUDA: see CudaOptions.
  int64_t max_table_entries = 0;
  std::optional<AttentionShape> attention_shape = {};
  double class_slack = 0.03;
  bool cuda_graphs = true;
  std::string plan_file = {};
};

// INVALID_ARGUMENT naming --device when it is none of these; FAILED_PRECONDITION when the machine,
// or this build, does not have it.
absl::StatusOr<std::unique_ptr<Ops>> CreateOps(const BackendOptions& options);

}  // namespace selfsame
