#pragma once

// Matrix products of few rows: y = x · Wᵀ, limited by reading W. Every output is one chain of
// m16n8k16 tensor-core steps over k in increasing order, in float, rounded once. That is the order
// of cuBLASLt's algorithms that do not split K, which is proved on the device before use; but
// where those have 64 outputs or more to a thread block, and few blocks for a narrow W, this
// has 32.
//
// x: [rows, k], W: [n, k], y: [rows, n] bf16 or float; 16-byte aligned. A row's result depends on
// that row alone.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/bfloat16.h"

namespace selfsame::cuda {

// Configurations 0 .. kStreamGemmConfigs - 1 differ in tile sizes, not in results.
inline constexpr int kStreamGemmConfigs = 6;

struct StreamGemmArgs {
  const BFloat16* x = nullptr;
  const BFloat16* w = nullptr;
  void* y = nullptr;
  bool is_float = false;
  int32_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// Whether a configuration takes this shape: k a multiple of 16, rows at most its own number.
bool StreamGemmTakes(int config, int32_t rows, int64_t k);
// Raises the kernels' shared memory limits on the current device; once, at start.
cudaError_t PrepareStreamGemm();
cudaError_t RunStreamGemm(int config, const StreamGemmArgs& args, cudaStream_t stream);

}  // namespace selfsame::cuda
