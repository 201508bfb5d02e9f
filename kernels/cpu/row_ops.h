#pragma once

// Operations on one row at a time; each row's result depends on that row alone. kernels/README.md
// has the arithmetic.

#include <cstdint>

#include "kernels/bfloat16.h"

namespace selfsame::cpu {

// out = bf16(bf16(x / sqrt(mean(x^2) + epsilon)) * weight). x, weight, out: [width]. out may be x.
void RmsNormRow(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t width,
                BFloat16* out);

// residual = bf16(residual + x). Both: [width].
void AddRow(const BFloat16* x, int32_t width, BFloat16* residual);

// Rotates pairs (i, i + head_dim / 2) of one head in place. cos, sin: [head_dim / 2].
void RopeHead(const float* cos, const float* sin, int32_t head_dim, BFloat16* head);

// out[i] = bf16(gate[i] / (1 + exp(-gate[i])) * up[i]).
void SiluMulRow(const BFloat16* gate, const BFloat16* up, int32_t width, BFloat16* out);

}  // namespace selfsame::cpu
