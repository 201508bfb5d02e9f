#pragma once

// The sum that split_sum.h defines, for the kernels that need it.

#include "kernels/cuda/split_sum.h"

namespace selfsame::cuda {

// `sums[i]`: the four elements at `offset` + 4 i, added up over all slices, which are known in
// number, so that all loads are under way at once.
template <int kSplits, int kQuads>
__device__ void SumSlices(const SplitProduct& product, int64_t offset, float4 (&sums)[kQuads]) {
  float4 slices[kSplits][kQuads];
#pragma unroll
  for (int split = 0; split < kSplits; ++split) {
    const auto* from =
        reinterpret_cast<const float4*>(product.partials + split * product.slice_size + offset);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      // Read once: not worth a place in the cache.
      slices[split][i] = __ldcs(from + i);
    }
  }
#pragma unroll
  for (int i = 0; i < kQuads; ++i) sums[i] = slices[0][i];
#pragma unroll
  for (int split = 1; split < kSplits; ++split) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4& slice = slices[split][i];
      sums[i] = make_float4(sums[i].x + slice.x, sums[i].y + slice.y, sums[i].z + slice.z,
                            sums[i].w + slice.w);
    }
  }
}

}  // namespace selfsame::cuda
