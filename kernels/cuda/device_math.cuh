#pragma once

// Arithmetic shared by the kernels. exp and log are polynomials in explicit fused multiply-adds,
// the same as the CPU backend's; sums over a block have one order. Compile with --fmad=false.

#include <cstdint>

#include "kernels/bfloat16.h"

namespace selfsame::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kVectorElements = 8;  // bf16 in a 16-byte access

__device__ inline float NegativeInfinity() { return __uint_as_float(0xff800000u); }

__device__ inline float Widen(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ inline float Widen(BFloat16 value) { return Widen(uint32_t{value.bits}); }

// To nearest, ties to even.
__device__ inline BFloat16 Narrow(float value) {
  BFloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
__device__ inline uint32_t NarrowPair(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// Elements [index, index + 8) of a row of `width`; those past the end are 0. `is_aligned`: rows
// start at multiples of 16 bytes and width is a multiple of 8.
__device__ inline void LoadEight(const BFloat16* row, int32_t index, int32_t width, bool is_aligned,
                                 float (&out)[kVectorElements]) {
  if (is_aligned) {
    const uint4 words = *reinterpret_cast<const uint4*>(row + index);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = Widen(pairs[i] & 0xffffu);
      out[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    out[i] = index + i < width ? Widen(row[index + i]) : 0.0f;
  }
}

__device__ inline void StoreEight(const float (&values)[kVectorElements], int32_t index,
                                  int32_t width, bool is_aligned, BFloat16* row) {
  if (is_aligned) {
    uint4 words;
    words.x = NarrowPair(values[0], values[1]);
    words.y = NarrowPair(values[2], values[3]);
    words.z = NarrowPair(values[4], values[5]);
    words.w = NarrowPair(values[6], values[7]);
    *reinterpret_cast<uint4*>(row + index) = words;
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    if (index + i < width) row[index + i] = Narrow(values[i]);
  }
}

// Butterfly over the 32 lanes: every lane gets the same bits.
__device__ inline float WarpSum(float value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = value + __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// Warp sums, added in increasing order of warp. Every thread gets the result. All threads call.
template <int kThreads>
__device__ inline float BlockSum(float value) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ float sums[kWarps];
  value = WarpSum(value);
  if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float total = sums[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) total = total + sums[i];
  __syncthreads();
  return total;
}

// 2^x by the hardware, whose bits are fixed for a kind of device. Exact: 2^0 = 1, 2^-inf = 0.
__device__ inline float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / x by the hardware, likewise. 1 / inf = 0.
__device__ inline float Reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// e^x within 2 units in the last place on [-87.336, 88.376]; 0 on [-88, -87.7].
__device__ inline float ExpInRange(float x) {
  constexpr float kRoundingMagic = 0x1.8p23f;
  const float shifted = __fmaf_rn(x, 0x1.715476p0f, kRoundingMagic);
  const float n = shifted - kRoundingMagic;
  float r = __fmaf_rn(-n, 0.693359375f, x);
  r = __fmaf_rn(-n, -2.12194440e-4f, r);
  float p = __fmaf_rn(1.9875691500e-4f, r, 1.3981999507e-3f);
  p = __fmaf_rn(p, r, 8.3334519073e-3f);
  p = __fmaf_rn(p, r, 4.1665795894e-2f);
  p = __fmaf_rn(p, r, 1.6666665459e-1f);
  p = __fmaf_rn(p, r, 5.0000001201e-1f);
  p = __fmaf_rn(r * r, p, r);
  p = p + 1.0f;
  // The factor 2^n is 0 at n = -127.
  return p * __uint_as_float((__float_as_uint(shifted) + 127u) << 23);
}

// e^x within 2 units in the last place on [-87.336, 88.376]; 0 below, infinity above.
__device__ inline float Exp(float x) {
  const float result = ExpInRange(x);
  if (x < -87.336f) return 0.0f;
  return x > 88.376f ? -NegativeInfinity() : result;
}

// e^x of x <= 0, with fewer instructions: 0 below -87.7, and of NaN.
__device__ inline float ExpOfNegative(float x) { return ExpInRange(fmaxf(x, -88.0f)); }

// Natural logarithm within 2 units in the last place of a normal positive x.
__device__ inline float Log(float x) {
  const int32_t bits = __float_as_int(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float f =
      __uint_as_float(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const float e = static_cast<float>(exponent);
  const float z = f * f;
  float p = __fmaf_rn(7.0376836292e-2f, f, -1.1514610310e-1f);
  p = __fmaf_rn(p, f, 1.1676998740e-1f);
  p = __fmaf_rn(p, f, -1.2420140846e-1f);
  p = __fmaf_rn(p, f, 1.4249322787e-1f);
  p = __fmaf_rn(p, f, -1.6668057665e-1f);
  p = __fmaf_rn(p, f, 2.0000714765e-1f);
  p = __fmaf_rn(p, f, -2.4999993993e-1f);
  p = __fmaf_rn(p, f, 3.3333331174e-1f);
  float y = (f * z) * p;
  y = __fmaf_rn(e, -2.12194440e-4f, y);
  y = __fmaf_rn(-z, 0.5f, y);
  return __fmaf_rn(e, 0.693359375f, f + y);
}

}  // namespace selfsame::cuda
