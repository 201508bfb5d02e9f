#pragma once

#include <bit>
#include <cstdint>

namespace selfsame {

// The upper half of an IEEE float. Storage type of weights, activations and KV.
struct BFloat16 {
  uint16_t bits;
};

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even, in integer arithmetic, so that every compiler and SIMD target
// agrees. NaN stays a quiet NaN.
inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  }
  const uint32_t rounding = 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>((bits + rounding) >> 16)};
}

}  // namespace selfsame
