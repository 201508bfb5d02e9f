#pragma once

// The algorithm of every matrix product of a model, by shape and row count.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_search.h"

namespace selfsame::cuda {

struct GemmPlansOptions {
  Schedule schedule = Schedule::kFast;
  double class_slack = 0.0;
  int32_t max_rows = 0;        // of bf16 products
  int32_t max_logit_rows = 0;  // of float products
  std::string plan_file;       // empty: none
  std::string scope;           // device product and library version
};

class GemmPlans {
 public:
  GemmPlans(GemmLauncher launcher, GemmPlansOptions options)
      : launcher_(std::move(launcher)), options_(std::move(options)) {}

  // Enqueues y = x · Wᵀ + bias. The first call of a shape finds its plans, which waits for the
  // device. Canonical: runs at the smallest rung that holds `rows`, and reads and writes that many
  // rows. REQUIRES: 1 <= rows <= the limit for this output.
  absl::Status Run(const GemmShape& shape, int32_t rows, const GemmOperands& operands);

  // As Run, but may leave the sum of a split product to the caller (GemmLauncher::RunUnsummed).
  absl::StatusOr<SplitProduct> RunUnsummed(const GemmShape& shape, int32_t rows,
                                           const GemmOperands& operands);

  // By increasing rows.
  absl::StatusOr<const std::vector<GemmPlan>*> PlansFor(const GemmShape& shape);

 private:
  // The algorithm for `rows` rows, and the rows that it is run with.
  struct Choice {
    const GemmAlgorithm* algorithm = nullptr;
    int32_t rows = 0;
  };
  absl::StatusOr<Choice> Choose(const GemmShape& shape, int32_t rows);
  absl::StatusOr<std::vector<GemmPlan>> Find(const GemmShape& shape);

  GemmLauncher launcher_;
  GemmPlansOptions options_;
  std::map<GemmShape, std::vector<GemmPlan>> plans_;
};

}  // namespace selfsame::cuda
