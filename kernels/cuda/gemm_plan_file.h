#pragma once

// Measured GEMM plans on disk, as JSON. Plans hold for one device product and one version of
// cuBLASLt; `scope` names both, and plans of another scope are as good as none.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_search.h"

namespace selfsame::cuda {

// What plans were searched for.
struct GemmPlanKey {
  std::string scope;
  GemmShape shape;
  GemmSearchOptions options;
  std::string rule = CanonicalRule();  // what is in the class, under either schedule
};

// The plans of `key` in the file; nothing when the file or the entry is missing. A malformed file
// is an error that names it.
absl::StatusOr<std::optional<std::vector<GemmPlan>>> LoadPlans(const std::string& path,
                                                               const GemmPlanKey& key);

// Adds or replaces the entry of `key`; others stay. Written to a new file in the same folder first
// and renamed, so that readers see either version. Of two writers at a time each leaves a whole
// file; one's entry may be lost, and is measured again.
absl::Status SavePlans(const std::string& path, const GemmPlanKey& key,
                       const std::vector<GemmPlan>& plans);

}  // namespace selfsame::cuda
