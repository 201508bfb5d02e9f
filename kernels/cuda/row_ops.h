#pragma once

// Operations on one row at a time; a row's result depends on that row and its width alone, not on
// the grid. All launchers enqueue on `stream` and return the launch error. Pointers are device
// memory; rows start at multiples of their width.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/split_sum.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

// out = bf16(bf16(x / sqrt(mean(x^2) + epsilon)) * weight), [rows, width]. With `residual`: first
// residual = bf16(residual + x), and the norm is taken of that. With a `product`, its sum as in
// split_sum.h stands in for x, to the bit, and is not written. Sum of squares: thread t of 256
// adds elements 8t .. 8t+7, 8(t+256) .., each by a fused multiply-add; then a butterfly over each
// warp; then the 8 warps in increasing order.
struct RmsNormArgs {
  const BFloat16* x = nullptr;
  SplitProduct product;          // n = width; if it has partials: REQUIRES TakesProduct
  BFloat16* residual = nullptr;  // or null
  const BFloat16* weight = nullptr;
  BFloat16* out = nullptr;
  float epsilon = 0.0f;
  int32_t rows = 0;
  int32_t width = 0;
  bool operator==(const RmsNormArgs&) const = default;
};
// Whether a product may stand in for x: with a residual, rows of a multiple of 8 elements that
// start at multiples of 16 bytes.
bool TakesProduct(const RmsNormArgs& args);
cudaError_t RunRmsNorm(const RmsNormArgs& args, cudaStream_t stream);

// With a norm: first the same norm over each q and k head. Sum of squares: thread t of head_dim /
// 16 adds elements 8t .. 8t+7, then head_dim / 2 + 8t .., each by a fused multiply-add; then a
// butterfly.
// Rotates q and k by the row's position: with c, s of (position, i) and a, b the elements i and
// i + head_dim / 2: a' = fma(a, c, -(b * s)), b' = fma(b, c, a * s), rounded to bf16. Writes q and
// k back, and k and v to the cache. REQUIRES: head_dim is a multiple of 16; cos and sin start at
// multiples of 16 bytes; with a norm, TakesQkNorm(shape).
struct RopeArgs {
  AttentionShape shape;
  QkNorm norm;  // weights null: none
  RopeTable table;
  const int32_t* positions = nullptr;  // [rows]
  const int32_t* kv_slots = nullptr;  // [rows]: block * 16 + place in it, or -1: nothing is written
  BFloat16* qkv = nullptr;            // [rows, qkv_width]
  BFloat16* kv = nullptr;             // [block][K then V][kv_head][16][head_dim]
  int32_t rows = 0;
  bool operator==(const RopeArgs&) const = default;
};
bool TakesQkNorm(const AttentionShape& shape);  // head_dim: 16, 32, .. 512
cudaError_t RunRopeAndStoreKv(const RopeArgs& args, cudaStream_t stream);

// out[r, i] = bf16(gate / (1 + exp(-gate)) * up), exp and the quotient by the hardware's
// approximations of 2^x and 1 / x. gate_up: [rows, 2 * width].
cudaError_t RunSiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out,
                       cudaStream_t stream);

// out[i, :] = table[indices[i], :].
cudaError_t RunGatherRows(const BFloat16* table, const int32_t* indices, int32_t rows,
                          int32_t width, BFloat16* out, cudaStream_t stream);

}  // namespace selfsame::cuda
