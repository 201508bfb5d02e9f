#pragma once

// Helpers of the kernel tests: reproducible data, SIMD target selection and scalar references that
// follow kernels/README.md word for word.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/check.h"
#include "hwy/targets.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops.h"

namespace selfsame::testing {

// SplitMix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [-1, 1).
  float Symmetric() { return static_cast<float>(Next() >> 40) * 0x1p-23f - 1.0f; }
  int32_t Below(int32_t bound) { return static_cast<int32_t>(Next() % bound); }

 private:
  uint64_t state_;
};

inline std::vector<BFloat16> RandomBFloat16(int64_t count, uint64_t seed, float scale = 1.0f) {
  Random random(seed);
  std::vector<BFloat16> values(count);
  for (BFloat16& value : values) value = ToBFloat16(random.Symmetric() * scale);
  return values;
}

inline std::unique_ptr<Ops> MakeOps(Schedule schedule, int thread_count) {
  auto ops = CreateCpuOps({.schedule = schedule, .thread_count = thread_count});
  SELFSAME_CHECK(ops.ok());
  return *std::move(ops);
}

inline std::unique_ptr<PackedMatrix> PackBFloat16(Ops& ops, const std::vector<BFloat16>& w,
                                                  int64_t n, int64_t k) {
  const MatrixPart part = {w.data(), DType::kBFloat16, n, k, k};
  auto packed = ops.PackMatrix({&part, 1});
  SELFSAME_CHECK(packed.ok());
  return *std::move(packed);
}

// Restricts Highway to one target while it lives. Objects made before keep no target.
class ForcedTarget {
 public:
  explicit ForcedTarget(int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~ForcedTarget() { hwy::SetSupportedTargetsForTest(0); }
};

// Targets with fused multiply-add that this CPU has.
inline std::vector<int64_t> UsableTargets() {
  std::vector<int64_t> targets;
  for (const int64_t target : {HWY_AVX2, HWY_AVX3, HWY_NEON}) {
    if ((hwy::SupportedTargets() & target) != 0) targets.push_back(target);
  }
  return targets;
}

inline bool SameBits(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(BFloat16)) == 0;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The canonical chain: pairs ascending, the odd element of a pair first.
inline float ScalarDot(const BFloat16* a, const BFloat16* b, int64_t count) {
  float sum = 0.0f;
  for (int64_t i = 0; i < count; i += 2) {
    const bool has_odd = i + 1 < count;
    sum = std::fma(has_odd ? ToFloat(a[i + 1]) : 0.0f, has_odd ? ToFloat(b[i + 1]) : 0.0f, sum);
    sum = std::fma(ToFloat(a[i]), ToFloat(b[i]), sum);
  }
  return sum;
}

// Sum over 16 virtual lanes, as the canonical arithmetic adds them.
inline float SumVirtualLanes(const float* lanes) {
  float sums[16];
  std::memcpy(sums, lanes, sizeof(sums));
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

}  // namespace selfsame::testing
