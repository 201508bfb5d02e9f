#include "kernels/cpu/row_ops.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_ops.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/exp_log-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace selfsame::cpu::HWY_NAMESPACE {
namespace {

// Copies a short last piece to a zero-filled one of 16, so that it takes the same path as the
// others.
HWY_INLINE void CopyTail(const BFloat16* from, int32_t count, BFloat16* to) {
  for (int32_t i = 0; i < kVirtualLanes; ++i) to[i] = i < count ? from[i] : BFloat16{0};
}

HWY_INLINE void AddSquares(const BFloat16* x, VirtualSum& sum) {
  for (int v = 0; v < kVectors; ++v) {
    const FloatVec value = LoadBFloat16(x + v * kLanes);
    sum.lanes[v] = hn::MulAdd(value, value, sum.lanes[v]);
  }
}

HWY_INLINE void Scale(const BFloat16* x, const BFloat16* weight, float scale, BFloat16* out) {
  for (int v = 0; v < kVectors; ++v) {
    const FloatVec value = LoadBFloat16(x + v * kLanes);
    const FloatVec normal = RoundThroughBFloat16(hn::Mul(value, hn::Set(FloatTag(), scale)));
    StoreBFloat16(hn::Mul(normal, LoadBFloat16(weight + v * kLanes)), out + v * kLanes);
  }
}

void RmsNorm(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t width,
             BFloat16* out) {
  const int32_t full = width / kVirtualLanes * kVirtualLanes;
  const int32_t rest = width - full;
  BFloat16 x_tail[kVirtualLanes];
  VirtualSum sum;
  for (int32_t i = 0; i < full; i += kVirtualLanes) AddSquares(x + i, sum);
  if (rest > 0) {
    CopyTail(x + full, rest, x_tail);
    AddSquares(x_tail, sum);
  }
  const float mean = sum.Total() / static_cast<float>(width);
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  for (int32_t i = 0; i < full; i += kVirtualLanes) Scale(x + i, weight + i, scale, out + i);
  if (rest > 0) {
    BFloat16 weight_tail[kVirtualLanes];
    BFloat16 out_tail[kVirtualLanes];
    CopyTail(weight + full, rest, weight_tail);
    Scale(x_tail, weight_tail, scale, out_tail);
    std::copy(out_tail, out_tail + rest, out + full);
  }
}

void Add(const BFloat16* x, int32_t width, BFloat16* residual) {
  int32_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    StoreBFloat16(hn::Add(LoadBFloat16(residual + i), LoadBFloat16(x + i)), residual + i);
  }
  for (; i < width; ++i) residual[i] = ToBFloat16(ToFloat(residual[i]) + ToFloat(x[i]));
}

void Rope(const float* cos, const float* sin, int32_t head_dim, BFloat16* head) {
  const FloatTag d;
  const int32_t half = head_dim / 2;
  int32_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const FloatVec first = LoadBFloat16(head + i);
    const FloatVec second = LoadBFloat16(head + half + i);
    const FloatVec c = hn::LoadU(d, cos + i);
    const FloatVec s = hn::LoadU(d, sin + i);
    StoreBFloat16(hn::MulSub(first, c, hn::Mul(second, s)), head + i);
    StoreBFloat16(hn::MulAdd(second, c, hn::Mul(first, s)), head + half + i);
  }
  for (; i < half; ++i) {
    const float first = ToFloat(head[i]);
    const float second = ToFloat(head[half + i]);
    head[i] = ToBFloat16(std::fma(first, cos[i], -(second * sin[i])));
    head[half + i] = ToBFloat16(std::fma(second, cos[i], first * sin[i]));
  }
}

HWY_INLINE FloatVec Silu(FloatVec x) {
  const FloatVec one = hn::Set(FloatTag(), 1.0f);
  return hn::Div(x, hn::Add(one, ExpVector(hn::Neg(x))));
}

HWY_INLINE void SiluMulPiece(const BFloat16* gate, const BFloat16* up, BFloat16* out) {
  for (int v = 0; v < kVectors; ++v) {
    const FloatVec activated = Silu(LoadBFloat16(gate + v * kLanes));
    StoreBFloat16(hn::Mul(activated, LoadBFloat16(up + v * kLanes)), out + v * kLanes);
  }
}

void SiluMul(const BFloat16* gate, const BFloat16* up, int32_t width, BFloat16* out) {
  const int32_t full = width / kVirtualLanes * kVirtualLanes;
  for (int32_t i = 0; i < full; i += kVirtualLanes) SiluMulPiece(gate + i, up + i, out + i);
  const int32_t rest = width - full;
  if (rest > 0) {
    BFloat16 gate_tail[kVirtualLanes];
    BFloat16 up_tail[kVirtualLanes];
    BFloat16 out_tail[kVirtualLanes];
    CopyTail(gate + full, rest, gate_tail);
    CopyTail(up + full, rest, up_tail);
    SiluMulPiece(gate_tail, up_tail, out_tail);
    std::copy(out_tail, out_tail + rest, out + full);
  }
}

}  // namespace
}  // namespace selfsame::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace selfsame::cpu {
namespace {
HWY_EXPORT(RmsNorm);
HWY_EXPORT(Add);
HWY_EXPORT(Rope);
HWY_EXPORT(SiluMul);
}  // namespace

void RmsNormRow(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t width,
                BFloat16* out) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, epsilon, width, out);
}

void AddRow(const BFloat16* x, int32_t width, BFloat16* residual) {
  HWY_DYNAMIC_DISPATCH(Add)(x, width, residual);
}

void RopeHead(const float* cos, const float* sin, int32_t head_dim, BFloat16* head) {
  HWY_DYNAMIC_DISPATCH(Rope)(cos, sin, head_dim, head);
}

void SiluMulRow(const BFloat16* gate, const BFloat16* up, int32_t width, BFloat16* out) {
  HWY_DYNAMIC_DISPATCH(SiluMul)(gate, up, width, out);
}

}  // namespace selfsame::cpu
#endif
