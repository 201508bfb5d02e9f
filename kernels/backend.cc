#include "kernels/backend.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"

namespace selfsame {

absl::StatusOr<std::unique_ptr<Ops>> CreateOps(const BackendOptions& options) {
  if (options.device == "cpu") {
    return CreateCpuOps({.schedule = options.schedule, .thread_count = options.thread_count});
  }
  absl::string_view name = options.device;
  int device = 0;
  if (!absl::ConsumePrefix(&name, "cuda") ||
      (!name.empty() && (!absl::ConsumePrefix(&name, ":") || !absl::SimpleAtoi(name, &device)))) {
    return InvalidArgumentError(
        "--device", absl::StrCat("is \"", options.device, "\"; it may be cpu, cuda or cuda:N"));
  }
  return CreateCudaOps({.schedule = options.schedule,
                        .device = device,
                        .max_rows = options.max_rows,
                        .max_logit_rows = options.max_logit_rows,
                        .max_table_entries = options.max_table_entries,
                        .attention_shape = options.attention_shape,
                        .class_slack = options.class_slack,
                        .use_graphs = options.cuda_graphs,
                        .plan_file = options.plan_file});
}

}  // namespace selfsame
