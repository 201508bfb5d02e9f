#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/split_sum.h"

namespace selfsame::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kElements = 4;  // of a thread, neighbours in a row

__device__ float4 Add(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The number of splits is known, so that all loads are under way at once.
template <int kSplits>
__global__ void __launch_bounds__(kThreads) SplitSumKernel(SplitSumArgs args) {
  const int64_t count = args.product.slice_size;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  if (first >= count) return;
  float4 partials[kSplits];
#pragma unroll
  for (int i = 0; i < kSplits; ++i) {
    // Read once: not worth a place in the cache.
    partials[i] =
        __ldcs(reinterpret_cast<const float4*>(args.product.partials + i * count + first));
  }
  float4 sum = partials[0];
#pragma unroll
  for (int i = 1; i < kSplits; ++i) sum = Add(sum, partials[i]);
  if (args.bias != nullptr) {
    const BFloat16* bias = args.bias + first % args.n;
    sum = Add(sum, make_float4(Widen(bias[0]), Widen(bias[1]), Widen(bias[2]), Widen(bias[3])));
  }
  if (args.is_float) {
    *reinterpret_cast<float4*>(static_cast<float*>(args.y) + first) = sum;
  } else {
    *reinterpret_cast<uint2*>(static_cast<BFloat16*>(args.y) + first) =
        make_uint2(NarrowPair(sum.x, sum.y), NarrowPair(sum.z, sum.w));
  }
}

template <int kSplits>
cudaError_t Launch(const SplitSumArgs& args, cudaStream_t stream) {
  constexpr int64_t kBlockElements = int64_t{kThreads} * kElements;
  const int64_t blocks = (args.product.slice_size + kBlockElements - 1) / kBlockElements;
  SplitSumKernel<kSplits><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t RunSplitSum(const SplitSumArgs& args, cudaStream_t stream) {
  if (args.n % kElements != 0) return cudaErrorInvalidValue;
  static_assert(kMaxSplits == 4);
  switch (args.product.splits) {
    case 2:
      return Launch<2>(args, stream);
    case 3:
      return Launch<3>(args, stream);
    case 4:
      return Launch<4>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace selfsame::cuda
