#pragma once

// One row of logits as a thread block sees it: what orders its tokens, how they are read, what is
// shared. All threads of the block call functions together, with the same arguments; blocks have
// whole warps, at most kMaxThreads threads. Every result is a maximum or an integer, so the number
// of threads is not in it.

#include <cstdint>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/sampling.h"

namespace selfsame::cuda {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kQuad = 4;  // logits in a 16-byte access
// Four logits for each lane of a warp, and how many of these a slice has.
inline constexpr int32_t kStripTokens = kWarpSize * kQuad;
inline constexpr int kStrips = kSliceTokens / kStripTokens;
inline constexpr float kLargest = 3.402823466e+38f;
inline constexpr float kMassOne = 0x1p40f;
inline constexpr int kMaxCandidates = 1024;

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
  float slice_maxima[kMaxSlices];
  uint64_t candidates[kMaxCandidates];  // keys
  int candidate_count;
  float threshold;
  int32_t kept;
  int selected_bin;
  uint64_t selected_weight;
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

__device__ inline float LogitOf(uint64_t key) {
  return FromOrderedBits(static_cast<uint32_t>(key >> 32));
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

// Calls body(first token, logits) for each four tokens, a thread's in increasing order, all lanes
// of a warp at a time. Tokens past the end have -infinity.
template <bool kAligned, typename Body>
__device__ void ForQuads(const Row& row, const Body& body) {
  constexpr int kLoads = 4;  // before the first is used
  const auto step = static_cast<int32_t>(blockDim.x) * kQuad;
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
  for (int32_t warp_begin = (static_cast<int32_t>(threadIdx.x) - lane) * kQuad;
       warp_begin < row.vocab; warp_begin += kLoads * step) {
    const int32_t begin = warp_begin + lane * kQuad;
    float quads[kLoads][kQuad];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      LoadQuad<kAligned>(row.logits, begin + i * step, row.vocab, quads[i]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (warp_begin + i * step < row.vocab) body(begin + i * step, quads[i]);
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

__device__ inline uint64_t MassOf(const Row& row, float logit) {
  const float scaled = Exp(__fdiv_rn(logit - row.max, row.temperature)) * kMassOne;
  return static_cast<uint64_t>(static_cast<int64_t>(scaled));
}

// The mass that top-p wants of `total`.
__device__ inline uint64_t TargetMass(float top_p, uint64_t total) {
  const double share = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const auto target = share < 1.0 ? uint64_t{1} : static_cast<uint64_t>(share);
  return target < total ? target : total;
}

}  // namespace selfsame::cuda
