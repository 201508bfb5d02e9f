#pragma once

// y = x · Wᵀ + bias over a range of panels and rows.
//
// Canonical: acc = 0; for k ascending acc = fma(x[k], w[n, k], acc) in float (an odd k is followed
// by one product of zeros); then + bias; then rounded to bf16. SIMD lanes run over n and never over
// k, so neither the target nor the tiling can change a bit, and a row's result depends on that row
// alone.

#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/cpu/packed_matrix.h"

namespace selfsame::cpu {

// Where results go: exactly one of `y` and `logits` is set. Row stride: n.
struct GemmOutput {
  BFloat16* y = nullptr;           // [rows, n]
  float* logits = nullptr;         // [rows, n]
  const BFloat16* bias = nullptr;  // [n] or null; with y only
};

// Part of the output that one task computes.
struct GemmRange {
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t panel_begin = 0;
  int32_t panel_end = 0;
};

// out[r * stride + i] = x[r, i] as float for rows [row_begin, row_end); entries up to `stride` are
// zeroed. x: [rows, k].
void WidenRows(const BFloat16* x, int32_t row_begin, int32_t row_end, int64_t k, int64_t stride,
               float* out);

// x: [rows, k] float at `x_stride`, zero at index k where k is odd.
void GemmCanonical(const float* x, int64_t x_stride, const CpuPackedMatrix& w,
                   const GemmRange& range, const GemmOutput& out);

}  // namespace selfsame::cpu
