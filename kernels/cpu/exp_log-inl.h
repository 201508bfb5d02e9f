// exp and log in float: range reduction and polynomials in explicit fused multiply-adds, so that
// every SIMD target and the scalar functions of exp_log.h give the same bits.

// Included again for each target, so no pragma once.
#if defined(SELFSAME_KERNELS_CPU_EXP_LOG_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SELFSAME_KERNELS_CPU_EXP_LOG_INL_H_
#undef SELFSAME_KERNELS_CPU_EXP_LOG_INL_H_
#else
#define SELFSAME_KERNELS_CPU_EXP_LOG_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/exp_log.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace selfsame::cpu::HWY_NAMESPACE {

// As selfsame::cpu::Exp.
HWY_INLINE FloatVec ExpVector(FloatVec x) {
  const FloatTag d;
  const FloatVec magic = hn::Set(d, kRoundingMagic);
  const FloatVec shifted = hn::MulAdd(x, hn::Set(d, kLog2E), magic);
  const FloatVec n = hn::Sub(shifted, magic);
  FloatVec r = hn::NegMulAdd(n, hn::Set(d, kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(d, kLn2Low), r);
  FloatVec p = hn::Set(d, kExpCoefficients[0]);
  for (int i = 1; i < kExpTerms; ++i) p = hn::MulAdd(p, r, hn::Set(d, kExpCoefficients[i]));
  p = hn::MulAdd(hn::Mul(r, r), p, r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  const WordTag words;
  const WordVec scale =
      hn::ShiftLeft<23>(hn::Add(hn::BitCast(words, shifted), hn::Set(words, kExponentBias)));
  const FloatVec result = hn::Mul(p, hn::BitCast(d, scale));
  const FloatVec infinity = hn::BitCast(d, hn::Set(words, kInfinityBits));
  const FloatVec below_high = hn::IfThenElse(hn::Gt(x, hn::Set(d, kExpHigh)), infinity, result);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kExpLow)), below_high);
}

// As selfsame::cpu::Log.
HWY_INLINE FloatVec LogVector(FloatVec x) {
  const FloatTag d;
  const IntTag ints;
  const auto bits = hn::BitCast(ints, x);
  const auto exponent =
      hn::ShiftRight<23>(hn::Sub(bits, hn::Set(ints, static_cast<int32_t>(kSqrtHalfBits))));
  const FloatVec f =
      hn::Sub(hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent))), hn::Set(d, 1.0f));
  const FloatVec e = hn::ConvertTo(d, exponent);
  const FloatVec z = hn::Mul(f, f);
  FloatVec p = hn::Set(d, kLogCoefficients[0]);
  for (int i = 1; i < kLogTerms; ++i) p = hn::MulAdd(p, f, hn::Set(d, kLogCoefficients[i]));
  FloatVec y = hn::Mul(hn::Mul(f, z), p);
  y = hn::MulAdd(e, hn::Set(d, kLn2Low), y);
  y = hn::NegMulAdd(z, hn::Set(d, 0.5f), y);
  return hn::MulAdd(e, hn::Set(d, kLn2High), hn::Add(f, y));
}

}  // namespace selfsame::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
