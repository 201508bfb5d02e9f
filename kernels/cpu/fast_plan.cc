#include "kernels/cpu/fast_plan.h"

namespace selfsame::cpu {

// A sum is a chain of dependent instructions, and a core keeps two of them going for each of 4
// (fused multiply-add) to 6 (dot product) cycles: with few rows there are too few sums in a
// register tile, so each is split over k into several chains until about 16 registers accumulate.
// BM_GemmKernel compares the candidates.
GemmPlan PlanGemm(int32_t rows, int64_t k, bool has_bf16_dot, int lanes) {
  if (has_bf16_dot && k % 2 == 0) {
    if (rows <= 2) return {GemmKernel::kBf16Dot, 4};
    if (rows <= 4) return {GemmKernel::kBf16Dot, 2};
    return {GemmKernel::kBf16Dot, 1};
  }
  if (lanes == 16 && rows == 1) return {GemmKernel::kFewRows, 4};
  if (lanes == 16 && rows == 2) return {GemmKernel::kFewRows, 2};
  if (rows == 1) return {GemmKernel::kFewRows, 2};
  return {GemmKernel::kCanonical, 1};
}

}  // namespace selfsame::cpu
