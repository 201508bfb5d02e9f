#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/gemm_probe.h"

namespace selfsame::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMaxBlocks = 4096;
constexpr uint64_t kRowSalt = 0x51ed270b7a3f1e95u;
constexpr uint64_t kWeightSalt = 0x2545f4914f6cdd1du;

__device__ uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Nearly normal, variance 1: a sum of four uniform values.
__device__ float Normal(uint64_t index, uint64_t salt) {
  const uint64_t bits = Mix(index * 0x9e3779b97f4a7c15u + salt);
  const auto sum = static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                        (bits >> 32 & 0xffff) + (bits >> 48));
  return static_cast<float>(sum - 131070) * (1.0f / 37837.0f);
}

__device__ bool IsPoisoned(int32_t row) { return row % 3 == 2; }

__device__ float ProbeValue(int32_t probe, int64_t column, int64_t k) {
  const int64_t half = k / 2;
  if (probe % 2 == 1 && column >= half && column < 2 * half) {
    return -ProbeValue(probe, column - half, k);
  }
  const uint64_t index = static_cast<uint64_t>(probe) << 32 | static_cast<uint64_t>(column);
  const auto magnitude = static_cast<int>(Mix(index) & 3);
  return Normal(index, kRowSalt) * static_cast<float>(1 << magnitude);
}

__global__ void ProbeRowsKernel(int64_t count, int64_t k, int32_t shift, bool has_poison,
                                BFloat16* x) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const auto row = static_cast<int32_t>(i / k);
    x[i] = has_poison && IsPoisoned(row) ? BFloat16{0x7fc0}
                                         : Narrow(ProbeValue((row + shift) % kProbeRows, i % k, k));
  }
}

__global__ void ProbeWeightsKernel(int64_t n, int64_t k, int64_t count, float scale, BFloat16* w) {
  const int64_t half = k / 2;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const int64_t row = i / k % n;
    const int64_t column = i % k;
    const int64_t base = column >= half && column < 2 * half ? column - half : column;
    float value =
        Normal(static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(base), kWeightSalt) * scale;
    if (base != column) {
      const uint64_t index = static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(column);
      value = value * (1.0f + Normal(index, kWeightSalt) * 0.0078125f);
    }
    w[i] = Narrow(value);
  }
}

template <typename Element>
__global__ void CompareKernel(ProbeComparison comparison, uint32_t* mismatches) {
  const auto* y = static_cast<const Element*>(comparison.y);
  const auto* references = static_cast<const Element*>(comparison.references);
  const int64_t n = comparison.n;
  const int64_t count = comparison.rows * n;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  uint32_t found[kMaxClasses] = {};
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const auto row = static_cast<int32_t>(i / n);
    if (comparison.has_poison && IsPoisoned(row)) continue;
    const int64_t place = (row + comparison.shift) % kProbeRows * n + i % n;
#pragma unroll
    for (int c = 0; c < kMaxClasses; ++c) {
      if (c < comparison.class_count && y[i] != references[c * kProbeRows * n + place]) ++found[c];
    }
  }
#pragma unroll
  for (int c = 0; c < kMaxClasses; ++c) {
    if (found[c] != 0) atomicAdd(&mismatches[c], found[c]);
  }
}

unsigned BlocksFor(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace

cudaError_t FillProbeRows(int32_t rows, int64_t k, int32_t shift, bool has_poison, BFloat16* x,
                          cudaStream_t stream) {
  const int64_t count = rows * k;
  ProbeRowsKernel<<<BlocksFor(count), kThreads, 0, stream>>>(count, k, shift, has_poison, x);
  return cudaGetLastError();
}

cudaError_t FillProbeWeights(int64_t n, int64_t k, int64_t count, BFloat16* w,
                             cudaStream_t stream) {
  const float scale = 1.0f / sqrtf(static_cast<float>(k));
  ProbeWeightsKernel<<<BlocksFor(count), kThreads, 0, stream>>>(n, k, count, scale, w);
  return cudaGetLastError();
}

cudaError_t CountMismatches(const ProbeComparison& comparison, uint32_t* mismatches,
                            cudaStream_t stream) {
  const unsigned blocks = BlocksFor(comparison.rows * comparison.n);
  if (comparison.element_bytes == 2) {
    CompareKernel<uint16_t><<<blocks, kThreads, 0, stream>>>(comparison, mismatches);
  } else {
    CompareKernel<uint32_t><<<blocks, kThreads, 0, stream>>>(comparison, mismatches);
  }
  return cudaGetLastError();
}

}  // namespace selfsame::cuda
