#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/split_sum.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kElements = 4;  // of a thread, neighbours in a row

template <int kSplits>
__global__ void __launch_bounds__(kThreads) SplitSumKernel(SplitSumArgs args) {
  const int64_t count = args.product.slice_size;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  if (first >= count) return;
  float4 sums[1];
  SumSlices<kSplits>(args.product, first, sums);
  float4& sum = sums[0];
  if (args.bias != nullptr) {
    const BFloat16* bias = args.bias + first % args.n;
    sum = make_float4(sum.x + Widen(bias[0]), sum.y + Widen(bias[1]), sum.z + Widen(bias[2]),
                      sum.w + Widen(bias[3]));
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
