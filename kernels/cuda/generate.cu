#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/generate.h"

namespace selfsame::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 16;

__global__ void __launch_bounds__(kThreads)
    GenerateKernel(const __grid_constant__ SyntheticPart part, BFloat16* out) {
  const int64_t count = part.rows * part.cols;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    out[i] = Narrow(SyntheticElement(part, i / part.cols, i % part.cols));
  }
}

}  // namespace

cudaError_t RunGenerate(const SyntheticPart& part, BFloat16* out, cudaStream_t stream) {
  const int64_t blocks = (part.rows * part.cols + kThreads - 1) / kThreads;
  GenerateKernel<<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0,
                   stream>>>(part, out);
  return cudaGetLastError();
}

}  // namespace selfsame::cuda
