#pragma once

// The noise of tokens, and the token it brings to the top.

#include <cstdint>

#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/sampling_row.cuh"

namespace selfsame::cuda {

// No noise is larger: u is at most 1 - 2^-24. With room for rounding.
inline constexpr float kNoiseBound = 16.7f;

__device__ inline float Noise(uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
  return -Log(-Log(u));
}

__device__ inline NoiseKey NoiseKeyOf(const DeviceSampleRow& params) {
  return {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32),
          static_cast<uint32_t>(params.position), static_cast<uint32_t>(params.choice_index)};
}

// Larger for larger (logit - max) / temperature + noise; among equals, for lower ids.
__device__ inline uint64_t NoisyKey(const Row& row, float logit, int32_t token, uint32_t word) {
  const float scaled = __fdiv_rn(logit - row.max, row.temperature);
  return OrderKey(scaled + Noise(word) + 0.0f, token);
}

// Not less than the noise of `word`, without its logarithms: -log(-log(u)) <= -log(1 - u), and with
// 1 - u = c * 2^-23, log2(c) is at least what c's bits are as a number of 2^-23, less the bias.
__device__ inline float NoiseLimit(uint32_t word) {
  constexpr float kLog2 = 0.693147181f;
  constexpr float kRoom = 0.01f;
  const float c = 8388607.5f - static_cast<float>(word >> 9);
  return __fmaf_rn(static_cast<float>(__float_as_uint(c)), -kLog2 * 0x1p-23f,
                   (23.0f + 127.0f) * kLog2 + kRoom);
}

// The token with the largest noisy key among those that pass `cutoff`. A warp computes the noise
// only of four tokens that might surpass its best so far.
template <bool kAligned>
__device__ int32_t FindNoisyMax(const Row& row, const DeviceSampleRow& params, uint64_t cutoff,
                                int32_t max_token, Shared& shared) {
  const NoiseKey noise_key = NoiseKeyOf(params);
  const auto max_id = static_cast<uint32_t>(max_token);
  const float inverse = __fdiv_rn(1.0f, row.temperature);
  const float cutoff_difference = cutoff == 0 ? NegativeInfinity() : LogitOf(cutoff) - row.max;
  uint64_t best_key = NoisyKey(row, row.max, max_token,
                               PhiloxWord(Philox(max_id / kQuad, noise_key), max_id % kQuad));
  float best = LogitOf(best_key);
  // No noise lifts a token whose difference is smaller to the best so far.
  float lowest = fmaxf((best - kNoiseBound) * row.temperature, cutoff_difference);
  ForQuads<kAligned>(row, [&](int32_t token, const float(&logits)[kQuad]) {
    const float difference =
        fmaxf(fmaxf(logits[0], logits[1]), fmaxf(logits[2], logits[3])) - row.max;
    if (!__any_sync(kAllLanes, difference >= lowest)) return;
    const uint4 words = Philox(static_cast<uint32_t>(token) / kQuad, noise_key);
    const float limit = NoiseLimit(max(max(words.x, words.y), max(words.z, words.w)));
    const bool may_win = difference >= lowest && __fmaf_rn(difference, inverse, limit) >= best;
    if (!__any_sync(kAllLanes, may_win)) return;
    if (may_win) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        const float logit = Finite(logits[i]);
        if (OrderKey(logit, token + i) < cutoff) continue;
        const uint64_t key = NoisyKey(row, logit, token + i, PhiloxWord(words, i));
        best_key = key > best_key ? key : best_key;
      }
    }
    best = FromOrderedBits(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(best_key >> 32)));
    lowest = fmaxf((best - kNoiseBound) * row.temperature, cutoff_difference);
  });
  return TokenOf(BlockMax(best_key, shared));
}

// The same among the first `count` candidates.
__device__ inline int32_t FindNoisyCandidate(const Row& row, const DeviceSampleRow& params,
                                             int32_t count, Shared& shared) {
  const NoiseKey noise_key = NoiseKeyOf(params);
  uint64_t best_key = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(blockDim.x)) {
    const uint64_t candidate = shared.candidates[i];
    const auto id = static_cast<uint32_t>(TokenOf(candidate));
    const uint32_t word = PhiloxWord(Philox(id / kQuad, noise_key), id % kQuad);
    const uint64_t key = NoisyKey(row, LogitOf(candidate), TokenOf(candidate), word);
    best_key = key > best_key ? key : best_key;
  }
  return TokenOf(BlockMax(best_key, shared));
}

}  // namespace selfsame::cuda
