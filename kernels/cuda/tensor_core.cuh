#pragma once

// The tensor-core and copy instructions that the kernels use (compute capability 8.0).

#include <cstdint>

#include "kernels/bfloat16.h"

namespace selfsame::cuda {

// Shape of one product: rows × columns × depth.
inline constexpr int kMmaRows = 16;
inline constexpr int kMmaColumns = 8;
inline constexpr int kMmaDepth = 16;

// c += a · b; a: 16 × 16 bf16 (row-major fragments), b: 16 × 8 (column-major), c: 16 × 8 float.
__device__ inline void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                   float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same, not moved before loads that precede it.
__device__ inline void MultiplyAddInOrder(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                          float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 × 8 matrices of bf16; lane 8 i + r gives the address of row r of matrix i. 16-byte
// aligned, shared memory.
__device__ inline void LoadMatrices(const BFloat16* row, uint32_t (&out)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
__device__ inline void LoadMatricesTransposed(const BFloat16* row, uint32_t (&out)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// Starts copying 16 bytes to shared memory, or writing zeros; then `from` is not read.
__device__ inline void CopyAsync(BFloat16* to, const BFloat16* from, bool is_present) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const uint32_t size_bytes = is_present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(from), "r"(size_bytes)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of the newest groups are under way.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace selfsame::cuda
