#pragma once

// y = x · Wᵀ + bias with the CPU's bf16 dot product (x86: AVX512_BF16), which does two neighbouring
// k at a time. It is two fused multiply-adds, the odd k first, with denormals flushed: with one
// chain the bits are those of GemmCanonical, at twice its speed.

#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed_matrix.h"

namespace selfsame::cpu {

// Whether this CPU has the instruction and it rounds as said above, which is tried once.
bool HasBf16Dot();

// `chains`: the steps over k go round robin to this many accumulators, which are added in pairs at
// the end: 4 for up to 2 rows, 2 for up to 4 rows, 1 for any number. x: [rows, k], k even.
// REQUIRES: HasBf16Dot().
void GemmBf16Dot(const BFloat16* x, const CpuPackedMatrix& w, const GemmRange& range, int chains,
                 const GemmOutput& out);

}  // namespace selfsame::cpu
