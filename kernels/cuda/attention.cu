#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_common.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kMergeWarps = 4;

// Of scores, in units of the exponent of 2.
float AttentionScale(int32_t head_dim) { return 1.44269504f / sqrtf(static_cast<float>(head_dim)); }

// Of a split, a lane's part.
template <int kLaneDims>
struct Partial {
  float max;
  float sum;
  float output[kLaneDims];
};

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
  const auto load = [&](int32_t split) {
    const int64_t place =
        int64_t{merge.partial_row + split * merge.stride} * args.shape.head_count + head;
    Partial<kLaneDims> partial;
    const float* state = args.partial_state + 2 * place;
    partial.max = state[0];
    partial.sum = state[1];
    const float* values = args.partial_output + place * kHeadDim + dim;
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) partial.output[i] = values[i];
    return partial;
  };
  Partial<kLaneDims> next = load(0);
  for (int32_t split = 0; split < merge.split_count; ++split) {
    const Partial<kLaneDims> partial = next;
    if (split + 1 < merge.split_count) next = load(split + 1);  // while this one is merged
    const MergeWeights weights = MergeSplit(scale, partial.max, partial.sum, max, sum);
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) {
      output[i] = MergeOutput(partial.output[i], output[i], weights);
    }
  }
  BFloat16* out = args.out + (int64_t{merge.row} * args.shape.head_count + head) * kHeadDim + dim;
  const float inverse = InverseSum(sum);
#pragma unroll
  for (int i = 0; i < kLaneDims; i += 2) {
    *reinterpret_cast<uint32_t*>(out + i) =
        NarrowPair(Normalise(output[i], inverse), Normalise(output[i + 1], inverse));
  }
}

// Runs the next `item_count` items of a sort.
cudaError_t Launch(const AttentionKernel& kernel, int32_t item_count, bool is_whole,
                   AttentionCall& call, cudaStream_t stream) {
  if (item_count == 0) return cudaSuccess;
  const size_t dim = call.args.shape.head_dim / 128;
  const dim3 grid(item_count, call.args.shape.kv_head_count);
  void* parameters[] = {&call};
  const cudaError_t error =
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel.functions[dim][is_whole ? 1 : 0]), grid,
                       dim3(kernel.threads), parameters, kernel.shared_size_bytes[dim], stream);
  call.first_item += item_count;
  return error;
}

cudaError_t Merge(const AttentionArgs& args, float scale, cudaStream_t stream) {
  if (args.merge_count == 0) return cudaSuccess;
  const dim3 grid(args.merge_count, (args.shape.head_count + kMergeWarps - 1) / kMergeWarps);
  const auto kernel = args.shape.head_dim == 64 ? MergeKernel<64> : MergeKernel<128>;
  kernel<<<grid, kMergeWarps * kWarpSize, 0, stream>>>(args, scale);
  return cudaGetLastError();
}

// CUDA loads a kernel when it is first asked for, which may allocate memory and wait for the
// device.
cudaError_t Load(const void* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

AttentionKernel ManyQueries(int32_t tile_queries) {
  return tile_queries == kWarpgroupTileQueries ? WarpgroupAttention() : LargeAttention();
}

}  // namespace

cudaError_t PrepareAttention(int32_t tile_queries) {
  for (const AttentionKernel& kernel : {SmallAttention(), ManyQueries(tile_queries)}) {
    for (int dim = 0; dim < 2; ++dim) {
      for (const AttentionKernel::Function function : kernel.functions[dim]) {
        const auto* const address = reinterpret_cast<const void*>(function);
        for (const cudaError_t error :
             {cudaFuncSetAttribute(address, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(kernel.shared_size_bytes[dim])),
              Load(address)}) {
          if (error != cudaSuccess) return error;
        }
      }
    }
  }
  const cudaError_t error = Load(reinterpret_cast<const void*>(MergeKernel<64>));
  return error != cudaSuccess ? error : Load(reinterpret_cast<const void*>(MergeKernel<128>));
}

cudaError_t RunAttention(const AttentionArgs& args, cudaStream_t stream) {
  if (!TakesAttention(args.shape)) return cudaErrorInvalidValue;
  const AttentionKernel small = SmallAttention();
  const AttentionKernel large = ManyQueries(args.tile_queries);
  const int32_t group = args.shape.head_count / args.shape.kv_head_count;
  AttentionCall call = {.args = args,
                        .first_item = 0,
                        .group = group,
                        .inverse_group = InverseGroup(group),
                        .scale = AttentionScale(args.shape.head_dim)};
  const AttentionItemCounts& counts = args.counts;
  for (const cudaError_t error :
       {Launch(small, counts.small_split, false, call, stream),
        Launch(large, counts.large_split, false, call, stream),
        Launch(small, counts.small_whole, true, call, stream),
        Launch(large, counts.large_whole, true, call, stream), Merge(args, call.scale, stream)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace selfsame::cuda
