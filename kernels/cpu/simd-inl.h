// Shared by the files that Highway compiles once for each target. Everything here gives the same
// bits on every target: reductions run over a fixed virtual width of 16 lanes, held in 16 / Lanes
// vectors.

// Included again for each target, so no pragma once.
#if defined(SELFSAME_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELFSAME_KERNELS_CPU_SIMD_INL_H_
#undef SELFSAME_KERNELS_CPU_SIMD_INL_H_
#else
#define SELFSAME_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace selfsame::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kVirtualLanes = 16;

using FloatTag = hn::CappedTag<float, kVirtualLanes>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;
using FloatVec = hn::Vec<FloatTag>;
using WordVec = hn::Vec<WordTag>;

inline constexpr int kLanes = static_cast<int>(HWY_MAX_BYTES / sizeof(float)) < kVirtualLanes
                                  ? static_cast<int>(HWY_MAX_BYTES / sizeof(float))
                                  : kVirtualLanes;
// Vectors that make up one virtual vector.
inline constexpr int kVectors = kVirtualLanes / kLanes;

HWY_INLINE FloatVec LoadBFloat16(const BFloat16* from) {
  const auto bits = hn::LoadU(HalfTag(), reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), bits)));
}

// The vector form of ToBFloat16.
HWY_INLINE hn::Vec<HalfTag> RoundToBFloat16(FloatVec value) {
  const WordTag words;
  const WordVec bits = hn::BitCast(words, value);
  const WordVec upper = hn::ShiftRight<16>(bits);
  const WordVec rounding = hn::Add(hn::Set(words, 0x7fffu), hn::And(upper, hn::Set(words, 1u)));
  const WordVec rounded = hn::ShiftRight<16>(hn::Add(bits, rounding));
  const WordVec quiet = hn::Or(upper, hn::Set(words, 0x40u));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(value));
  const WordVec result = hn::IfThenElse(is_nan, quiet, rounded);
  return hn::DemoteTo(HalfTag(), hn::BitCast(IntTag(), result));
}

HWY_INLINE void StoreBFloat16(FloatVec value, BFloat16* to) {
  hn::StoreU(RoundToBFloat16(value), HalfTag(), reinterpret_cast<uint16_t*>(to));
}

// Rounds to bf16 and widens again.
HWY_INLINE FloatVec RoundThroughBFloat16(FloatVec value) {
  return hn::BitCast(FloatTag(),
                     hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), RoundToBFloat16(value))));
}

// Sums of the 16 virtual lanes: lane l + lane l + 8, then 4, 2, 1.
inline float SumLanes(const float* lanes) {
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) sums[i] = sums[i] + sums[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// One virtual vector of accumulators.
struct VirtualSum {
  FloatVec lanes[kVectors];

  HWY_INLINE VirtualSum() {
    for (FloatVec& vector : lanes) vector = hn::Zero(FloatTag());
  }
  HWY_INLINE float Total() const {
    HWY_ALIGN float all[kVirtualLanes];
    for (int v = 0; v < kVectors; ++v) hn::Store(lanes[v], FloatTag(), all + v * kLanes);
    return SumLanes(all);
  }
};

}  // namespace selfsame::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
