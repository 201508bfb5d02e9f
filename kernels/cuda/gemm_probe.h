#pragma once

// Data and comparisons with which GEMM algorithms are sorted into reduction classes.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bfloat16.h"

namespace selfsame::cuda {

// There are 16 different probe rows; a matrix of probes repeats them.
inline constexpr int32_t kProbeRows = 16;
inline constexpr int32_t kMaxClasses = 8;

// x[i, :] = probe row (i + shift) mod 16; with `has_poison` every third row, from row 2 on, is NaN
// instead. Even probes are pseudo-normal values of different magnitudes. Odd ones are such that
// their products with the weights below cancel almost entirely, so that nearly every change of
// order shows. x: [rows, k].
cudaError_t FillProbeRows(int32_t rows, int64_t k, int32_t shift, bool has_poison, BFloat16* x,
                          cudaStream_t stream);

// count / (n * k) copies of one matrix, pseudo-normal of variance 1 / k; the second half of a row
// nearly repeats the first.
cudaError_t FillProbeWeights(int64_t n, int64_t k, int64_t count, BFloat16* w, cudaStream_t stream);

// mismatches[c] += elements of y [rows, n] whose bits differ from those of reference c [16, n], for
// c below class_count; poisoned rows are left out. `element_bytes`: 2 or 4. `references` is
// [class_count, 16, n].
struct ProbeComparison {
  const void* y = nullptr;
  const void* references = nullptr;
  int64_t n = 0;
  int32_t rows = 0;
  int32_t class_count = 0;
  int32_t shift = 0;
  bool has_poison = false;
  size_t element_bytes = 2;
};
cudaError_t CountMismatches(const ProbeComparison& comparison, uint32_t* mismatches,
                            cudaStream_t stream);

}  // namespace selfsame::cuda
