#pragma once

// The sum of the partial products of slices of k: y = ((p[0] + p[1]) + ..) + bias, float additions
// in increasing order of slice, then one rounding where y is bf16.
//
// partials: [splits, rows, n] float; y: [rows, n] bf16 or float; bias: [n] or null; n a multiple of
// 4, 16-byte aligned. An element's result depends on its own partials alone.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/bfloat16.h"

namespace selfsame::cuda {

inline constexpr int32_t kMaxSplits = 4;

// A product whose slices are not yet added up.
struct SplitProduct {
  const float* partials = nullptr;  // [splits, rows, n]; null: none
  int32_t splits = 0;
  int64_t slice_size = 0;  // rows * n
  bool operator==(const SplitProduct&) const = default;
};

struct SplitSumArgs {
  SplitProduct product;  // 2 .. kMaxSplits splits
  const BFloat16* bias = nullptr;
  void* y = nullptr;
  bool is_float = false;
  int64_t n = 0;
};

// cudaErrorInvalidValue for another n or number of splits.
cudaError_t RunSplitSum(const SplitSumArgs& args, cudaStream_t stream);

}  // namespace selfsame::cuda
