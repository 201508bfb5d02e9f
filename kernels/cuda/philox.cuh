#pragma once

// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (2011): four random words are a pure function of a counter and a key.

#include <cstdint>

namespace selfsame::cuda {

// What the noise of a token is keyed by, beside its id.
struct NoiseKey {
  uint32_t seed_low;
  uint32_t seed_high;
  uint32_t position;
  uint32_t choice_index;
};

// Counter {first, position, choice_index, 0}.
__device__ inline uint4 Philox(uint32_t first, const NoiseKey& noise_key) {
  constexpr int kRounds = 10;
  constexpr uint32_t kMultiplier0 = 0xD2511F53u;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57u;
  uint4 counter = make_uint4(first, noise_key.position, noise_key.choice_index, 0);
  uint32_t key0 = noise_key.seed_low;
  uint32_t key1 = noise_key.seed_high;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t high0 = __umulhi(kMultiplier0, counter.x);
    const uint32_t low0 = kMultiplier0 * counter.x;
    const uint32_t high1 = __umulhi(kMultiplier1, counter.z);
    const uint32_t low1 = kMultiplier1 * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ key0, low1, high0 ^ counter.w ^ key1, low0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

__device__ inline uint32_t PhiloxWord(const uint4& words, uint32_t index) {
  return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

}  // namespace selfsame::cuda
