#pragma once

// What a block does with one row of logits: reads all of it, orders its tokens, finds the token at
// which a weight is reached. All threads of the block call these together, with the same arguments;
// blocks have whole warps, at most kMaxThreads threads. Every result is a maximum or an integer, so
// the number of threads is not in it.

#include <cstdint>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/sampling.h"

namespace selfsame::cuda {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kQuad = 4;  // logits in a 16-byte access
inline constexpr float kLargest = 3.402823466e+38f;

// One row's view.
struct Row {
  const float* logits;
  int32_t vocab;
  float max;
  float temperature;
};

inline constexpr int kBins = 256;
// Copies of a histogram, so that the lanes of a warp rarely meet in one counter.
inline constexpr int kCopies = 16;
inline constexpr int kBinsPerLane = kBins / kWarpSize;

// 64-bit counters in two words each, since only 32-bit additions are fast in shared memory.
struct Histogram {
  uint32_t low[kBins][kCopies];
  uint32_t high[kBins][kCopies];
};

struct Shared {
  Histogram histogram;
  uint64_t words[kMaxThreads / kWarpSize];
  uint64_t top_keys[kMaxTopLogprobs];
  int top_size;
  int selected_bin;
  uint64_t remaining;
  float max;
  float logarithm;
  int32_t max_token;
};

__device__ inline float Finite(float logit) {
  return fminf(fmaxf(logit, NegativeInfinity()), kLargest) + 0.0f;  // -0 becomes 0
}

// Orders floats as unsigned integers.
__device__ inline uint32_t OrderedBits(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float FromOrderedBits(uint32_t bits) {
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits & 0x7fffffffu : ~bits);
}

// Larger for larger values; among equals, for lower ids.
__device__ inline uint64_t OrderKey(float value, int32_t token_id) {
  return uint64_t{OrderedBits(value)} << 32 | ~static_cast<uint32_t>(token_id);
}
__device__ inline int32_t TokenOf(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

// Logits of tokens first .. first + 3; -infinity past the end. Aligned: rows start at multiples of
// 16 bytes and vocab is a multiple of kQuad.
template <bool kAligned>
__device__ void LoadQuad(const float* logits, int32_t first, int32_t vocab, float (&out)[kQuad]) {
  if constexpr (kAligned) {
    float4 quad =
        make_float4(NegativeInfinity(), NegativeInfinity(), NegativeInfinity(), NegativeInfinity());
    if (first < vocab) quad = *reinterpret_cast<const float4*>(logits + first);
    out[0] = quad.x;
    out[1] = quad.y;
    out[2] = quad.z;
    out[3] = quad.w;
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      out[i] = first + i < vocab ? logits[first + i] : NegativeInfinity();
    }
  }
}

// Calls body(first token, logits) for each four tokens, a thread's in increasing order. Tokens past
// the end have -infinity.
template <bool kAligned, typename Body>
__device__ void ForQuads(const Row& row, const Body& body) {
  constexpr int kLoads = 4;  // before the first is used
  const auto step = static_cast<int32_t>(blockDim.x) * kQuad;
  for (int32_t begin = static_cast<int32_t>(threadIdx.x) * kQuad; begin < row.vocab;
       begin += kLoads * step) {
    float quads[kLoads][kQuad];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      LoadQuad<kAligned>(row.logits, begin + i * step, row.vocab, quads[i]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (begin + i * step < row.vocab) body(begin + i * step, quads[i]);
    }
  }
}

// Calls body(token, finite logit) for each token.
template <bool kAligned, typename Body>
__device__ void ForTokens(const Row& row, const Body& body) {
  ForQuads<kAligned>(row, [&](int32_t first, const float(&logits)[kQuad]) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if (first + i < row.vocab) body(first + i, Finite(logits[i]));
    }
  });
}

// Every thread gets the result.
template <typename Combine>
__device__ uint64_t BlockReduce(uint64_t value, Shared& shared, const Combine& combine) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  if (threadIdx.x % kWarpSize == 0) shared.words[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  uint64_t total = shared.words[0];
  const auto warps = static_cast<int>(blockDim.x) / kWarpSize;
  for (int i = 1; i < warps; ++i) total = combine(total, shared.words[i]);
  __syncthreads();
  return total;
}

__device__ inline uint64_t BlockMin(uint64_t value, Shared& shared) {
  return BlockReduce(value, shared, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
}

__device__ inline uint64_t BlockMax(uint64_t value, Shared& shared) {
  return BlockReduce(value, shared, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

__device__ inline void AddToBin(Histogram& histogram, int bin, uint64_t weight) {
  const int copy = threadIdx.x % kCopies;
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t old = atomicAdd(&histogram.low[bin][copy], low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old ? 1u : 0u);
  if (high != 0) atomicAdd(&histogram.high[bin][copy], high);
}

// Weights of the tokens whose key agrees with `prefix` above `shift + 8` bits and passes `cutoff`,
// by the next 8 bits.
template <bool kAligned, typename Weight>
__device__ void FillHistogram(const Row& row, uint64_t cutoff, uint64_t prefix, int shift,
                              const Weight& weight, Histogram& histogram) {
  for (auto i = static_cast<int>(threadIdx.x); i < kBins * kCopies;
       i += static_cast<int>(blockDim.x)) {
    histogram.low[i / kCopies][i % kCopies] = 0;
    histogram.high[i / kCopies][i % kCopies] = 0;
  }
  __syncthreads();
  const uint64_t mask = shift == 56 ? 0 : ~uint64_t{0} << (shift + 8);
  ForTokens<kAligned>(row, [&](int32_t token, float logit) {
    const uint64_t key = OrderKey(logit, token);
    if ((key & mask) != prefix || key < cutoff) return;
    AddToBin(histogram, static_cast<int>(key >> shift & 0xff), weight(row, logit));
  });
  __syncthreads();
}

// From the highest bin down, the one in which the weights reach `remaining`; subtracts the weights
// of those above it. Lane l has bins 255 - 8 l down to 248 - 8 l.
__device__ inline void SelectBin(Shared& shared, uint64_t remaining) {
  if (threadIdx.x < kWarpSize) {
    const int lane = static_cast<int>(threadIdx.x);
    uint64_t weights[kBinsPerLane];
    uint64_t sum = 0;
    for (int i = 0; i < kBinsPerLane; ++i) {
      const int bin = kBins - 1 - (lane * kBinsPerLane + i);
      weights[i] = 0;
      for (int copy = 0; copy < kCopies; ++copy) {
        weights[i] +=
            (uint64_t{shared.histogram.high[bin][copy]} << 32) + shared.histogram.low[bin][copy];
      }
      sum += weights[i];
    }
    uint64_t reached = sum;
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const uint64_t before = __shfl_up_sync(kAllLanes, reached, offset);
      if (lane >= offset) reached += before;
    }
    uint64_t above = reached - sum;
    if (above < remaining && remaining <= reached) {
      int i = 0;
      while (above + weights[i] < remaining) above += weights[i++];
      shared.selected_bin = kBins - 1 - (lane * kBinsPerLane + i);
      shared.remaining = remaining - above;
    }
  }
  __syncthreads();
}

// The key of the token at which the weights of tokens that pass `cutoff`, in decreasing order of
// key, reach `target`. REQUIRES: 1 <= target <= the sum of their weights.
template <bool kAligned, typename Weight>
__device__ uint64_t SelectCutoff(const Row& row, uint64_t cutoff, uint64_t target,
                                 const Weight& weight, Shared& shared) {
  // The top byte of ~id is the same for all ids.
  constexpr int kShifts[] = {56, 48, 40, 32, 16, 8, 0};
  uint64_t prefix = 0;
#pragma unroll 1
  for (const int shift : kShifts) {
    if (shift == 16) prefix |= uint64_t{0xff} << 24;
    FillHistogram<kAligned>(row, cutoff, prefix, shift, weight, shared.histogram);
    SelectBin(shared, target);
    prefix |= static_cast<uint64_t>(shared.selected_bin) << shift;
    target = shared.remaining;
    __syncthreads();
  }
  return prefix;
}

}  // namespace selfsame::cuda
