// The inner loops of attention over one tile of 64 keys; attention.h has the arithmetic.

// Included again for each target, so no pragma once.
#if defined(SELFSAME_KERNELS_CPU_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELFSAME_KERNELS_CPU_ATTENTION_TILES_INL_H_
#undef SELFSAME_KERNELS_CPU_ATTENTION_TILES_INL_H_
#else
#define SELFSAME_KERNELS_CPU_ATTENTION_TILES_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/exp_log-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace selfsame::cpu::HWY_NAMESPACE {

// Keys of a cache block, and of a virtual vector.
static_assert(kKvBlockTokens == kVirtualLanes);
inline constexpr int kTileBlocks = kTileKeys / kKvBlockTokens;
// Queries of a register tile.
inline constexpr int kTileQueries = 4;
// Virtual vectors of keys, and vectors of output dimensions, of a register tile.
inline constexpr int kScoreBlocks = kLanes == 16 ? 4 : 1;
inline constexpr int kOutputVectors = kLanes == 8 ? 2 : 4;

// exp of one float, inside vector code: the scalar function would call a library for its fused
// multiply-adds.
HWY_INLINE float ExpOfOne(float x) { return hn::GetLane(ExpVector(hn::Set(FloatTag(), x))); }

// Transposes a block of 16 keys, [16][head_dim] bf16, to columns of `keys`, 4 × 4 words at a time.
HWY_INLINE void TransposeBlock(const BFloat16* block, int32_t head_dim, uint32_t* keys) {
  const hn::FixedTag<uint32_t, 4> d4;
  const hn::FixedTag<uint64_t, 2> d2;
  const auto* words = reinterpret_cast<const uint32_t*>(block);
  const int32_t pairs = head_dim / 2;
  for (int32_t pair = 0; pair < pairs; pair += 4) {
    for (int key = 0; key < kKvBlockTokens; key += 4) {
      const uint32_t* from = words + key * pairs + pair;
      const auto a = hn::LoadU(d4, from);
      const auto b = hn::LoadU(d4, from + pairs);
      const auto c = hn::LoadU(d4, from + 2 * pairs);
      const auto e = hn::LoadU(d4, from + 3 * pairs);
      const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));
      const auto ab_high = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));
      const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
      const auto ce_high = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
      uint32_t* to = keys + pair * kTileKeys + key;
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ce_low)), d4, to);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ce_low)), d4, to + kTileKeys);
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ce_high)), d4, to + 2 * kTileKeys);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ce_high)), d4, to + 3 * kTileKeys);
    }
  }
}

// Scaled scores of kQueries queries against kScoreBlocks × 16 keys.
template <int kQueries>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, int32_t head_dim, float scale,
                          const uint32_t* HWY_RESTRICT keys, float* HWY_RESTRICT scores) {
  constexpr int kKeyVectors = kScoreBlocks * kVectors;
  const FloatTag d;
  const WordTag words;
  const WordVec upper = hn::Set(words, 0xffff0000u);
  FloatVec acc[kQueries][kKeyVectors];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kKeyVectors; ++v) acc[i][v] = hn::Zero(d);
  }
  for (int32_t pair = 0; pair < head_dim / 2; ++pair) {
    FloatVec even[kKeyVectors];
    FloatVec odd[kKeyVectors];
    for (int v = 0; v < kKeyVectors; ++v) {
      const WordVec word = hn::Load(words, keys + pair * kTileKeys + v * kLanes);
      even[v] = hn::BitCast(d, hn::ShiftLeft<16>(word));
      odd[v] = hn::BitCast(d, hn::And(word, upper));
    }
    for (int i = 0; i < kQueries; ++i) {
      const FloatVec q0 = hn::Set(d, q[i * head_dim + pair * 2]);
      const FloatVec q1 = hn::Set(d, q[i * head_dim + pair * 2 + 1]);
      for (int v = 0; v < kKeyVectors; ++v) acc[i][v] = hn::MulAdd(q1, odd[v], acc[i][v]);
      for (int v = 0; v < kKeyVectors; ++v) acc[i][v] = hn::MulAdd(q0, even[v], acc[i][v]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kKeyVectors; ++v) {
      hn::Store(hn::Mul(acc[i][v], hn::Set(d, scale)), d, scores + i * kTileKeys + v * kLanes);
    }
  }
}

// Whether this target can use the bf16 dot product, where the CPU has it (HasBf16Dot).
#if HWY_TARGET == HWY_AVX3
inline constexpr bool kCanUseBf16Dot = true;

// acc + the products of two pairs in each lane, the odd one first. As assembly, since Highway has
// no target with this instruction.
HWY_INLINE FloatVec DotPair(FloatVec acc, WordVec a, WordVec b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(acc.raw) : "v"(a.raw), "v"(b.raw));
  return acc;
}
#else
inline constexpr bool kCanUseBf16Dot = false;

HWY_INLINE FloatVec DotPair(FloatVec acc, WordVec, WordVec) { return acc; }
#endif

// As ScoreTile, with dot products; the same bits. q: [kQueries, head_dim / 2] pairs.
template <int kQueries>
HWY_INLINE void ScoreTileDot(const uint32_t* HWY_RESTRICT q, int32_t head_dim, float scale,
                             const uint32_t* HWY_RESTRICT keys, float* HWY_RESTRICT scores) {
  constexpr int kKeyVectors = kScoreBlocks * kVectors;
  const FloatTag d;
  const WordTag words;
  const int32_t pairs = head_dim / 2;
  FloatVec acc[kQueries][kKeyVectors];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kKeyVectors; ++v) acc[i][v] = hn::Zero(d);
  }
  for (int32_t pair = 0; pair < pairs; ++pair) {
    WordVec key[kKeyVectors];
    for (int v = 0; v < kKeyVectors; ++v) {
      key[v] = hn::Load(words, keys + pair * kTileKeys + v * kLanes);
    }
    for (int i = 0; i < kQueries; ++i) {
      const WordVec query = hn::Set(words, q[i * pairs + pair]);
      for (int v = 0; v < kKeyVectors; ++v) acc[i][v] = DotPair(acc[i][v], key[v], query);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kKeyVectors; ++v) {
      hn::Store(hn::Mul(acc[i][v], hn::Set(d, scale)), d, scores + i * kTileKeys + v * kLanes);
    }
  }
}

// Turns a query's scores into probabilities against its running max, and updates max and sums. Keys
// from `key_count` (1 to 64) on are treated as absent. Returns alpha.
HWY_INLINE float Softmax(int32_t key_count, float* HWY_RESTRICT scores, float* max,
                         float* HWY_RESTRICT sums) {
  const FloatTag d;
  constexpr int kTileVectors = kTileKeys / kLanes;
  const FloatVec absent = hn::Set(d, -std::numeric_limits<float>::infinity());
  FloatVec score[kTileVectors];
  FloatVec tile_max = absent;
  for (int v = 0; v < kTileVectors; ++v) {
    score[v] = hn::Load(d, scores + v * kLanes);
    if (key_count < (v + 1) * kLanes) {
      const int32_t present = std::max(0, key_count - v * kLanes);
      score[v] = hn::IfThenElse(hn::FirstN(d, present), score[v], absent);
    }
    tile_max = hn::Max(tile_max, score[v]);
  }
  const FloatVec new_max = hn::Max(hn::MaxOfLanes(d, tile_max), hn::Set(d, *max));
  const FloatVec alpha = ExpVector(hn::Sub(hn::Set(d, *max), new_max));
  *max = hn::GetLane(new_max);
  FloatVec lanes[kVectors];
  for (int v = 0; v < kVectors; ++v) lanes[v] = hn::Mul(hn::Load(d, sums + v * kLanes), alpha);
  for (int v = 0; v < kTileVectors; ++v) {
    const FloatVec p = ExpVector(hn::Sub(score[v], new_max));
    hn::Store(p, d, scores + v * kLanes);
    lanes[v % kVectors] = hn::Add(lanes[v % kVectors], p);
  }
  for (int v = 0; v < kVectors; ++v) hn::Store(lanes[v], d, sums + v * kLanes);
  return hn::GetLane(alpha);
}

// output = output * alpha + probabilities · values for kQueries queries and kDims vectors of
// dimensions. values(block) is the first value of a 16-key block.
template <int kQueries, int kDims>
HWY_INLINE void OutputTile(const float* HWY_RESTRICT probabilities, const float* alpha,
                           const BFloat16* const* values, int32_t key_count, int32_t head_dim,
                           int32_t first_dim, float* HWY_RESTRICT output) {
  const FloatTag d;
  FloatVec acc[kQueries][kDims];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kDims; ++v) {
      acc[i][v] = hn::Mul(hn::Load(d, output + i * head_dim + first_dim + v * kLanes),
                          hn::Set(d, alpha[i]));
    }
  }
  for (int32_t block = 0; block * kKvBlockTokens < key_count; ++block) {
    const BFloat16* value = values[block] + first_dim;
    const float* p = probabilities + block * kKvBlockTokens;
    const int32_t keys = std::min(kKvBlockTokens, key_count - block * kKvBlockTokens);
    for (int32_t key = 0; key < keys; ++key, value += head_dim) {
      FloatVec row[kDims];
      for (int v = 0; v < kDims; ++v) row[v] = LoadBFloat16(value + v * kLanes);
      for (int i = 0; i < kQueries; ++i) {
        const FloatVec weight = hn::Set(d, p[i * kTileKeys + key]);
        for (int v = 0; v < kDims; ++v) acc[i][v] = hn::MulAdd(weight, row[v], acc[i][v]);
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kDims; ++v) {
      hn::Store(acc[i][v], d, output + i * head_dim + first_dim + v * kLanes);
    }
  }
}

template <int kQueries>
void OutputQueries(const float* probabilities, const float* alpha, const BFloat16* const* values,
                   int32_t key_count, int32_t head_dim, float* output) {
  int32_t dim = 0;
  for (; dim + kOutputVectors * kLanes <= head_dim; dim += kOutputVectors * kLanes) {
    OutputTile<kQueries, kOutputVectors>(probabilities, alpha, values, key_count, head_dim, dim,
                                         output);
  }
  for (; dim < head_dim; dim += kVirtualLanes) {
    OutputTile<kQueries, kVectors>(probabilities, alpha, values, key_count, head_dim, dim, output);
  }
}

// Scores of a run of queries against the first `key_count` keys of the tile, rounded up to blocks.
// `q_pairs` null: without dot products.
template <int kQueries>
void ScoreQueries(const float* q, const uint32_t* q_pairs, int32_t head_dim, float scale,
                  const uint32_t* keys, int32_t key_count, float* scores) {
  for (int32_t key = 0; key < key_count; key += kScoreBlocks * kVirtualLanes) {
    if (kCanUseBf16Dot && q_pairs != nullptr) {
      ScoreTileDot<kQueries>(q_pairs, head_dim, scale, keys + key, scores + key);
    } else {
      ScoreTile<kQueries>(q, head_dim, scale, keys + key, scores + key);
    }
  }
}

}  // namespace selfsame::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
