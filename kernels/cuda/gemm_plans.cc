#include "kernels/cuda/gemm_plans.h"

#include <algorithm>
#include <optional>

#include "common/check.h"
#include "common/errors.h"
#include "kernels/cuda/gemm_plan_file.h"

namespace selfsame::cuda {

absl::Status GemmPlans::Run(const GemmShape& shape, int32_t rows, const GemmOperands& operands) {
  ASSIGN_OR_RETURN(const Choice choice, Choose(shape, rows));
  return launcher_.Run(shape, *choice.algorithm, choice.rows, operands);
}

absl::StatusOr<SplitProduct> GemmPlans::RunUnsummed(const GemmShape& shape, int32_t rows,
                                                    const GemmOperands& operands) {
  ASSIGN_OR_RETURN(const Choice choice, Choose(shape, rows));
  return launcher_.RunUnsummed(shape, *choice.algorithm, choice.rows, operands);
}

absl::StatusOr<GemmPlans::Choice> GemmPlans::Choose(const GemmShape& shape, int32_t rows) {
  ASSIGN_OR_RETURN(const std::vector<GemmPlan>* plans, PlansFor(shape));
  const auto plan = std::lower_bound(
      plans->begin(), plans->end(), rows,
      [](const GemmPlan& candidate, int32_t wanted) { return candidate.rows < wanted; });
  SELFSAME_CHECK(rows >= 1 && plan != plans->end());
  const int32_t run_rows = options_.schedule == Schedule::kCanonical ? plan->rows : rows;
  return Choice{.algorithm = &plan->algorithm, .rows = run_rows};
}

absl::StatusOr<const std::vector<GemmPlan>*> GemmPlans::PlansFor(const GemmShape& shape) {
  const auto known = plans_.find(shape);
  if (known != plans_.end()) return &known->second;
  ASSIGN_OR_RETURN(std::vector<GemmPlan> plans, Find(shape));
  return &plans_.emplace(shape, std::move(plans)).first->second;
}

absl::StatusOr<std::vector<GemmPlan>> GemmPlans::Find(const GemmShape& shape) {
  const int32_t max_rows =
      shape.output == GemmOutput::kFloat ? options_.max_logit_rows : options_.max_rows;
  const GemmPlanKey key = {.scope = options_.scope,
                           .shape = shape,
                           .options = {.schedule = options_.schedule,
                                       .class_slack = options_.class_slack,
                                       .rungs = RungsFor(max_rows, options_.schedule)}};
  if (!options_.plan_file.empty()) {
    ASSIGN_OR_RETURN(std::optional<std::vector<GemmPlan>> stored,
                     LoadPlans(options_.plan_file, key));
    if (stored.has_value()) {
      ASSIGN_OR_RETURN(const bool holds, ProvePlans(launcher_, shape, key.options, *stored));
      if (holds) return *std::move(stored);
    }
  }
  ASSIGN_OR_RETURN(std::vector<GemmPlan> plans, SearchPlans(launcher_, shape, key.options));
  if (!options_.plan_file.empty()) {
    RETURN_IF_ERROR(SavePlans(options_.plan_file, key, plans));
  }
  return plans;
}

}  // namespace selfsame::cuda
