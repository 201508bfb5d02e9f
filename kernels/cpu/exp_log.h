#pragma once

// exp and log of the CPU's canonical arithmetic, scalar form; exp_log-inl.h has the vector form
// with the same bits. Both need a native fused multiply-add to be fast, none to be right.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace selfsame::cpu {

// Adding this to a float below 2^22 rounds it to an integer (ties to even), left in the low bits.
inline constexpr float kRoundingMagic = 0x1.8p23f;
inline constexpr float kLog2E = 0x1.715476p0f;
// ln 2 in two pieces; products of the first with exponents are exact.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
// Below: the result would be denormal and is 0. Above: infinity.
inline constexpr float kExpLow = -87.336f;
inline constexpr float kExpHigh = 88.376f;
inline constexpr uint32_t kExponentBias = 127;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;
inline constexpr uint32_t kSqrtHalfBits = 0x3f3504f3u;

// (e^r - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2], highest power first.
inline constexpr int kExpTerms = 6;
inline constexpr float kExpCoefficients[kExpTerms] = {1.9875691500e-4f, 1.3981999507e-3f,
                                                      8.3334519073e-3f, 4.1665795894e-2f,
                                                      1.6666665459e-1f, 5.0000001201e-1f};
// (log(1 + f) - f + f^2 / 2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1], highest power first.
inline constexpr int kLogTerms = 9;
inline constexpr float kLogCoefficients[kLogTerms] = {
    7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
    -1.6668057665e-1f, 2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};

// e^x within 2 units in the last place on [-87.336, 88.376]; 0 below, infinity above.
inline float Exp(float x) {
  const float shifted = std::fma(x, kLog2E, kRoundingMagic);
  const float n = shifted - kRoundingMagic;
  float r = std::fma(-n, kLn2High, x);
  r = std::fma(-n, kLn2Low, r);
  float p = kExpCoefficients[0];
  for (int i = 1; i < kExpTerms; ++i) p = std::fma(p, r, kExpCoefficients[i]);
  p = std::fma(r * r, p, r);
  p = p + 1.0f;
  const uint32_t scale = (std::bit_cast<uint32_t>(shifted) + kExponentBias) << 23;
  if (x < kExpLow) return 0.0f;
  if (x > kExpHigh) return std::numeric_limits<float>::infinity();
  return p * std::bit_cast<float>(scale);
}

// Natural logarithm within 2 units in the last place of a normal positive x; other x give some
// value.
inline float Log(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t exponent = (bits - static_cast<int32_t>(kSqrtHalfBits)) >> 23;
  const uint32_t fraction = static_cast<uint32_t>(bits) - (static_cast<uint32_t>(exponent) << 23);
  const float f = std::bit_cast<float>(fraction) - 1.0f;
  const float e = static_cast<float>(exponent);
  const float z = f * f;
  float p = kLogCoefficients[0];
  for (int i = 1; i < kLogTerms; ++i) p = std::fma(p, f, kLogCoefficients[i]);
  float y = (f * z) * p;
  y = std::fma(e, kLn2Low, y);
  y = std::fma(-z, 0.5f, y);
  return std::fma(e, kLn2High, f + y);
}

}  // namespace selfsame::cpu
