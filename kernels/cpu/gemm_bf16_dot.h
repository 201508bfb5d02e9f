#pragma once

// y = x · Wᵀ + bias with the CPU's bf16 dot product (x86: AVX512_BF16), which adds two neighbouring
// k at a time; fast schedule only. acc = dot(x[k], x[k + 1]; w[n, k], w[n, k + 1]; acc) for k
// ascending in steps of two, as the instruction rounds it; then + bias, rounded to bf16.

#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed_matrix.h"

namespace selfsame::cpu {

// Whether this CPU has the instruction and the build knows it.
bool HasBf16Dot();

// `chains`: the steps over k go round robin to this many accumulators, which are added in pairs at
// the end: 4 for up to 2 rows, 2 for up to 4 rows, 1 for any number. x: [rows, k], k even.
// REQUIRES: HasBf16Dot().
void GemmBf16Dot(const BFloat16* x, const CpuPackedMatrix& w, const GemmRange& range, int chains,
                 const GemmOutput& out);

}  // namespace selfsame::cpu
