#pragma once

// The instructions of compute capability 9.0 (sm_90a) that the kernels use: matrix products of a
// warpgroup, four consecutive warps, with operands in shared memory; and barriers in shared memory
// on which loading and computing warps wait for each other.
//
// Operands in shared memory lie in swizzled tiles: columns of 64 bf16, each [rows][64] with a pitch
// of 128 bytes, whose eight 16-byte pieces are permuted by the row (piece p of row r is at p ^ (r
// mod 8)). A tile starts at a multiple of 1024 bytes.

#include <cstdint>

#include "kernels/bfloat16.h"

namespace selfsame::cuda {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;  // of a product's result
inline constexpr int kSwizzleWidth = 64;   // elements of a column of a tile
inline constexpr int kSwizzleAlignment = 1024;

template <int kRows, int kWidth>
struct __align__(kSwizzleAlignment) SwizzledTile {
  static_assert(kRows % 8 == 0 && kWidth % kSwizzleWidth == 0);
  static constexpr int kPitch = kSwizzleWidth;
  static constexpr int kColumnSize = kRows * kSwizzleWidth;
  BFloat16 data[kRows * kWidth];

  // Where 8 elements start; `column` is a multiple of 8.
  __device__ static int Offset(int row, int column) {
    const int piece = column % kSwizzleWidth / 8 ^ row % 8;
    return column / kSwizzleWidth * kColumnSize + row * kSwizzleWidth + piece * 8;
  }
};

// Describes an operand that starts at `data` in a tile: [m or n][k], of which a product takes 16 of
// the k of one column of the tile; or [k][n], of which it takes all n, the tile's columns being
// `column_bytes` apart.
__device__ inline uint64_t DescribeOperand(const BFloat16* data, uint32_t column_bytes = 16) {
  constexpr uint64_t kGroupBytes = 1024;
  constexpr uint64_t kSwizzle128Bytes = 1;
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(data));
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{column_bytes >> 4} << 16 |
         (kGroupBytes >> 4) << 32 | kSwizzle128Bytes << 62;
}
// The operand `bytes` further on, within the same tile.
__device__ inline uint64_t Advance(uint64_t operand, uint32_t bytes) {
  return operand + (bytes >> 4);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Tells the compiler that a value is the same in all lanes of a warp.
__device__ inline int Uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// Before a warpgroup's products: orders register accesses before them.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a batch of products.
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// The compiler computes values before this point, and what comes after it from them.
template <int kTiles>
__device__ inline void Pin(float (&values)[kTiles][4]) {
#pragma unroll
  for (auto& tile : values) {
#pragma unroll
    for (float& value : tile) asm volatile("" : "+f"(value)::"memory");
  }
}

// Waits until at most kPending of the newest batches are under way; then `result`, of one before
// them, may be read.
template <int kPending, int kTiles>
__device__ inline void WaitForProducts(float (&result)[kTiles][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  Pin(result);
}

#define SELFSAME_TILE(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define SELFSAME_EIGHT_TILES(c, t)                                                           \
  SELFSAME_TILE((c)[(t)]), SELFSAME_TILE((c)[(t) + 1]), SELFSAME_TILE((c)[(t) + 2]),         \
      SELFSAME_TILE((c)[(t) + 3]), SELFSAME_TILE((c)[(t) + 4]), SELFSAME_TILE((c)[(t) + 5]), \
      SELFSAME_TILE((c)[(t) + 6]), SELFSAME_TILE((c)[(t) + 7])

// c = a · bᵀ, or c += a · bᵀ; a: 64 × 16, b: 64 × 16, both in shared memory, k contiguous;
// c: 64 × 64 float, fragments as those of m16n8k16, warp w of the warpgroup has rows 16 w and on.
__device__ inline void MultiplyShared(uint64_t a, uint64_t b, bool is_first, float (&c)[8][4]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.u32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : SELFSAME_EIGHT_TILES(c, 0)
      : "l"(a), "l"(b), "r"(static_cast<uint32_t>(is_first)));
}

// c += a · b; a: 64 × 16, fragments as those of m16n8k16; b: 16 × 64 in shared memory, n
// contiguous.
__device__ inline void MultiplyRegisters(const uint32_t (&a)[4], uint64_t b, float (&c)[8][4]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : SELFSAME_EIGHT_TILES(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1));
}
// The same; b: 16 × 128, c: 64 × 128.
__device__ inline void MultiplyRegisters(const uint32_t (&a)[4], uint64_t b, float (&c)[16][4]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : SELFSAME_EIGHT_TILES(c, 0), SELFSAME_EIGHT_TILES(c, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1));
}

#undef SELFSAME_EIGHT_TILES
#undef SELFSAME_TILE

// What this thread has written to shared memory, and what it has seen there of other threads'
// writes, comes before the products that it, or a thread behind its next barrier, begins.
__device__ inline void OrderBeforeProducts() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Waits for the threads of one warpgroup. `id`: 1 to 15.
__device__ inline void SyncWarpgroup(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kWarpgroupThreads) : "memory");
}

// Registers a thread of a warpgroup may use from here on; the kernel has a cap at its entry.
template <int kCount>
__device__ inline void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void AcquireRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// A barrier in shared memory that is passed once `count` threads have arrived, again and again.
struct SharedBarrier {
  uint64_t state;

  __device__ uint32_t address() const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&state));
  }
  // By one thread, before a __syncthreads().
  __device__ void Init(uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
  }
  __device__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  // Arrives once all copies are done that this thread has started so far.
  __device__ void ArriveAfterCopies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address())
                 : "memory");
  }
  // Waits until the barrier has been passed for the n-th time, `parity` = n mod 2, n from 0.
  __device__ void Wait(uint32_t parity) const {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace selfsame::cuda
