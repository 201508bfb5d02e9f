#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_common.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kMergeWarps = 4;

// One warp: one row and head; lane l has dimensions l * head_dim / 32 and on.
template <int kHeadDim>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    MergeKernel(const __grid_constant__ AttentionArgs args, float scale) {
  constexpr int kLaneDims = kHeadDim / kWarpSize;
  const AttentionMerge merge = args.merges[blockIdx.x];
  const int32_t head = static_cast<int32_t>(blockIdx.y) * kMergeWarps +
                       static_cast<int32_t>(threadIdx.x) / kWarpSize;
  if (head >= args.shape.head_count || merge.split_count == 0) return;
  const int dim = threadIdx.x % kWarpSize * kLaneDims;
  float max = NegativeInfinity();
  float sum = 0.0f;
  float output[kLaneDims] = {};
  for (int32_t split = 0; split < merge.split_count; ++split) {
    const int64_t place =
        int64_t{merge.partial_row + split * merge.stride} * args.shape.head_count + head;
    const float* values = args.partial_output + place * kHeadDim + dim;
    const MergeWeights weights = MergeSplit(scale, args.partial_state[2 * place],
                                            args.partial_state[2 * place + 1], max, sum);
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) output[i] = MergeOutput(values[i], output[i], weights);
  }
  BFloat16* out = args.out + (int64_t{merge.row} * args.shape.head_count + head) * kHeadDim + dim;
  const float inverse = InverseSum(sum);
#pragma unroll
  for (int i = 0; i < kLaneDims; i += 2) {
    *reinterpret_cast<uint32_t*>(out + i) =
        NarrowPair(Normalise(output[i], inverse), Normalise(output[i + 1], inverse));
  }
}

}  // namespace

cudaError_t PrepareAttention(int32_t tile_queries) {
  const cudaError_t error = PrepareSmallAttention();
  if (error != cudaSuccess) return error;
  return tile_queries == kWarpgroupTileQueries ? PrepareWarpgroupAttention()
                                               : PrepareLargeAttention();
}

cudaError_t RunAttention(const AttentionArgs& args, cudaStream_t stream) {
  if (!TakesAttention(args.shape)) return cudaErrorInvalidValue;
  const AttentionItemCounts& counts = args.counts;
  int32_t first = 0;
  const auto take = [&first](int32_t count, bool is_whole) {
    const AttentionRange range = {first, count, is_whole};
    first += count;
    return range;
  };
  for (const bool is_whole : {false, true}) {
    const auto small = take(is_whole ? counts.small_whole : counts.small_split, is_whole);
    const auto large = take(is_whole ? counts.large_whole : counts.large_split, is_whole);
    if (small.item_count > 0) RunSmallAttention(args, small, stream);
    if (large.item_count == 0) continue;
    if (args.tile_queries == kWarpgroupTileQueries) {
      RunWarpgroupAttention(args, large, stream);
    } else {
      RunLargeAttention(args, large, stream);
    }
  }
  if (args.merge_count > 0) {
    const dim3 grid(args.merge_count, (args.shape.head_count + kMergeWarps - 1) / kMergeWarps);
    const auto kernel = args.shape.head_dim == 64 ? MergeKernel<64> : MergeKernel<128>;
    kernel<<<grid, kMergeWarps * kWarpSize, 0, stream>>>(args, AttentionScale(args.shape.head_dim));
  }
  return cudaGetLastError();
}

}  // namespace selfsame::cuda
