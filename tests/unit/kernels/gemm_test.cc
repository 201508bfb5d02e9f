#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/fast_plan.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/gemm_bf16_dot.h"
#include "kernels/cpu/packed_matrix.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace selfsame {
namespace {

using testing::ForcedTarget;
using testing::MakeOps;
using testing::PackBFloat16;
using testing::RandomBFloat16;
using testing::SameBits;

struct Shape {
  int64_t n;
  int64_t k;
};

constexpr Shape kShapes[] = {{1, 1}, {5, 7}, {31, 16}, {33, 65}, {96, 576}, {127, 131}, {64, 1030}};

std::vector<BFloat16> RunGemm(Ops& ops, const std::vector<BFloat16>& x, int32_t rows,
                              const PackedMatrix& w, const std::vector<BFloat16>& bias) {
  std::vector<BFloat16> y(rows * w.n());
  ops.Gemm(x.data(), rows, w, bias.empty() ? nullptr : bias.data(), y.data());
  return y;
}

// The same with the multiply-add kernel, which an Ops leaves out where a faster one has its bits.
std::vector<BFloat16> RunMultiplyAdds(const std::vector<BFloat16>& x, int32_t rows,
                                      const PackedMatrix& w, const std::vector<BFloat16>& bias) {
  const cpu::FlushDenormals flush;
  const auto& matrix = static_cast<const cpu::CpuPackedMatrix&>(w);
  const int64_t stride = w.k() + 1;
  std::vector<float> widened(rows * stride);
  cpu::WidenRows(x.data(), 0, rows, w.k(), stride, widened.data());
  std::vector<BFloat16> y(rows * w.n());
  cpu::GemmCanonical(widened.data(), stride, matrix, {0, rows, 0, matrix.panel_count()},
                     {y.data(), nullptr, bias.empty() ? nullptr : bias.data()});
  return y;
}

// The definition, one element at a time.
std::vector<BFloat16> ScalarGemm(const std::vector<BFloat16>& x, int32_t rows,
                                 const std::vector<BFloat16>& w, const Shape& shape,
                                 const std::vector<BFloat16>& bias) {
  std::vector<BFloat16> y;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t n = 0; n < shape.n; ++n) {
      float sum = testing::ScalarDot(x.data() + row * shape.k, w.data() + n * shape.k, shape.k);
      if (!bias.empty()) sum += ToFloat(bias[n]);
      y.push_back(ToBFloat16(sum));
    }
  }
  return y;
}

TEST(GemmTest, CanonicalEqualsTheScalarDefinitionOnEveryTargetAndThreadCount) {
  for (const Shape& shape : kShapes) {
    const auto w = RandomBFloat16(shape.n * shape.k, 1);
    const auto bias = RandomBFloat16(shape.n, 2);
    for (const int32_t rows : {1, 3, 8, 17}) {
      const auto x = RandomBFloat16(rows * shape.k, 3 + rows);
      const auto expected = ScalarGemm(x, rows, w, shape, bias);
      for (const int threads : {1, 2, 3}) {
        auto ops = MakeOps(Schedule::kCanonical, threads);
        const auto packed = PackBFloat16(*ops, w, shape.n, shape.k);
        for (const int64_t target : testing::UsableTargets()) {
          const ForcedTarget forced(target);
          EXPECT_TRUE(SameBits(RunGemm(*ops, x, rows, *packed, bias), expected))
              << "n " << shape.n << " k " << shape.k << " rows " << rows << " threads " << threads
              << " target " << target;
          EXPECT_TRUE(SameBits(RunMultiplyAdds(x, rows, *packed, bias), expected))
              << "n " << shape.n << " k " << shape.k << " rows " << rows << " target " << target;
        }
      }
    }
  }
}

TEST(GemmTest, CanonicalKernelsAgreeOnTinyHugeAndCancellingNumbers) {
  const Shape shape = {96, 512};
  for (const float scale : {0x1p-62f, 0x1p-64f, 0x1p-120f, 0x1p+60f, 1.0f}) {
    auto w = RandomBFloat16(shape.n * shape.k, 20, scale);
    const auto x = RandomBFloat16(8 * shape.k, 21, scale);
    // The second half of every row nearly undoes the first.
    for (int64_t i = 0; i < shape.n * shape.k; ++i) {
      if (i % shape.k >= shape.k / 2) w[i] = ToBFloat16(-ToFloat(w[i - shape.k / 2]) * 1.01f);
    }
    auto ops = MakeOps(Schedule::kCanonical, 2);
    const auto packed = PackBFloat16(*ops, w, shape.n, shape.k);
    const cpu::FlushDenormals flush;
    const auto expected = ScalarGemm(x, 8, w, shape, {});
    EXPECT_TRUE(SameBits(RunGemm(*ops, x, 8, *packed, {}), expected)) << scale;
    for (const int64_t target : testing::UsableTargets()) {
      const ForcedTarget forced(target);
      EXPECT_TRUE(SameBits(RunMultiplyAdds(x, 8, *packed, {}), expected)) << scale;
    }
  }
}

TEST(GemmTest, BothSchedulesAreCloseToDoublePrecision) {
  for (const Shape& shape : kShapes) {
    const auto w = RandomBFloat16(shape.n * shape.k, 4);
    for (const int32_t rows : {1, 2, 3, 4, 5, 8, 17}) {
      const auto x = RandomBFloat16(rows * shape.k, 5);
      for (const Schedule schedule : {Schedule::kFast, Schedule::kCanonical}) {
        auto ops = MakeOps(schedule, 2);
        const auto packed = PackBFloat16(*ops, w, shape.n, shape.k);
        const auto y = RunGemm(*ops, x, rows, *packed, {});
        std::vector<float> logits(rows * shape.n);
        ops->Logits(x.data(), rows, *packed, logits.data());
        for (int64_t i = 0; i < rows * shape.n; ++i) {
          double sum = 0.0;
          double magnitude = 0.0;
          for (int64_t k = 0; k < shape.k; ++k) {
            const double product = double{ToFloat(x[i / shape.n * shape.k + k])} *
                                   double{ToFloat(w[i % shape.n * shape.k + k])};
            sum += product;
            magnitude += std::abs(product);
          }
          const double float_error = magnitude * std::sqrt(double(shape.k)) * 0x1p-23;
          ASSERT_NEAR(logits[i], sum, float_error + 1e-30);
          ASSERT_NEAR(ToFloat(y[i]), sum, std::abs(sum) * 0x1p-8 + float_error + 1e-30);
        }
      }
    }
  }
}

TEST(GemmTest, CanonicalRowsIgnoreTheirOffsetAndNeighbours) {
  const Shape shape = {95, 577};
  const auto w = RandomBFloat16(shape.n * shape.k, 6);
  const auto row = RandomBFloat16(shape.k, 7);
  auto ops = MakeOps(Schedule::kCanonical, 2);
  const auto packed = PackBFloat16(*ops, w, shape.n, shape.k);
  const auto alone = RunGemm(*ops, row, 1, *packed, {});
  for (const int32_t rows : {2, 7, 16, 130}) {
    for (const int32_t offset : {0, 1, rows / 2, rows - 1}) {
      auto x = RandomBFloat16(rows * shape.k, 8 + rows);
      // A neighbour that overflows must stay a matter of that neighbour.
      std::fill_n(x.begin(), shape.k, ToBFloat16(std::numeric_limits<float>::infinity()));
      std::copy(row.begin(), row.end(), x.begin() + offset * shape.k);
      const auto y = RunGemm(*ops, x, rows, *packed, {});
      const std::vector<BFloat16> got(y.begin() + offset * shape.n,
                                      y.begin() + (offset + 1) * shape.n);
      EXPECT_TRUE(SameBits(got, alone)) << "rows " << rows << " offset " << offset;
    }
  }
}

// The control: invariance would be easy to claim of a test that cannot see a difference.
TEST(GemmTest, FastRowsDoDependOnTheRowCount) {
  const Shape shape = {96, 576};
  const auto w = RandomBFloat16(shape.n * shape.k, 9);
  const auto x = RandomBFloat16(8 * shape.k, 10);
  for (const int64_t target : testing::UsableTargets()) {
    const ForcedTarget forced(target);
    auto ops = MakeOps(Schedule::kFast, 2);
    const auto packed = PackBFloat16(*ops, w, shape.n, shape.k);
    std::vector<float> one(shape.n);
    std::vector<float> eight(8 * shape.n);
    ops->Logits(x.data(), 1, *packed, one.data());
    ops->Logits(x.data(), 8, *packed, eight.data());
    eight.resize(shape.n);
    EXPECT_FALSE(SameBits(one, eight)) << "target " << target;
  }
}

TEST(GemmTest, ForcedTargetsAreReallyUsed) {
  for (const int64_t target : testing::UsableTargets()) {
    const ForcedTarget forced(target);
    EXPECT_EQ(cpu::GemmLanes(), target == HWY_AVX3 ? 16 : target == HWY_AVX2 ? 8 : 4);
  }
}

// Sums of a row as GemmFewRows defines them.
float ScalarChains(const BFloat16* x, const BFloat16* w, int64_t k, int chains) {
  std::vector<float> sums(chains, 0.0f);
  const int64_t pairs = (k + 1) / 2;
  const int64_t rounds = pairs / (chains / 2) * (chains / 2);
  for (int64_t i = 0; i < 2 * pairs; ++i) {
    const int64_t pair = i / 2;
    const int64_t chain = (pair < rounds ? pair % (chains / 2) : 0) * 2 + i % 2;
    const float a = i < k ? ToFloat(x[i]) : 0.0f;
    const float b = i < k ? ToFloat(w[i]) : 0.0f;
    sums[chain] = std::fma(a, b, sums[chain]);
  }
  for (int width = chains / 2; width >= 1; width /= 2) {
    for (int c = 0; c < width; ++c) sums[c] += sums[c + width];
  }
  return sums[0];
}

TEST(GemmTest, ChainsOfFewRowsFollowTheirDefinition) {
  const std::pair<int32_t, int> settings[] = {{1, 2}, {1, 4}, {2, 2}};
  for (const Shape& shape : kShapes) {
    const auto w = RandomBFloat16(shape.n * shape.k, 11);
    auto ops = MakeOps(Schedule::kFast, 1);
    const auto packed = PackBFloat16(*ops, w, shape.n, shape.k);
    const auto& matrix = static_cast<const cpu::CpuPackedMatrix&>(*packed);
    for (const auto& [rows, chains] : settings) {
      const auto x = RandomBFloat16(rows * shape.k, 12);
      const int64_t stride = shape.k + 1;
      std::vector<float> widened(rows * stride);
      cpu::WidenRows(x.data(), 0, rows, shape.k, stride, widened.data());
      std::vector<float> expected;
      for (int64_t i = 0; i < rows * shape.n; ++i) {
        expected.push_back(ScalarChains(x.data() + i / shape.n * shape.k,
                                        w.data() + i % shape.n * shape.k, shape.k, chains));
      }
      for (const int64_t target : testing::UsableTargets()) {
        const ForcedTarget forced(target);
        std::vector<float> logits(rows * shape.n);
        cpu::GemmFewRows(widened.data(), stride, matrix, {0, rows, 0, matrix.panel_count()}, chains,
                         {nullptr, logits.data(), nullptr});
        EXPECT_TRUE(SameBits(logits, expected)) << rows << " rows, " << chains << " chains";
      }
    }
  }
}

// Every plan of the fast schedule that this CPU can run, called as a kernel: a dot-product kernel
// where there is one, and chains of multiply-adds everywhere.
std::vector<std::pair<int32_t, cpu::GemmPlan>> FastKernels() {
  std::vector<std::pair<int32_t, cpu::GemmPlan>> kernels = {{1, {cpu::GemmKernel::kFewRows, 2}},
                                                            {1, {cpu::GemmKernel::kFewRows, 4}},
                                                            {2, {cpu::GemmKernel::kFewRows, 2}}};
  if (!cpu::HasBf16Dot()) return kernels;
  const std::pair<int32_t, int> dots[] = {{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4},
                                          {3, 2}, {4, 2}, {5, 1}, {8, 1}, {23, 1}};
  for (const auto& [rows, chains] : dots) {
    kernels.push_back({rows, {cpu::GemmKernel::kBf16Dot, chains}});
  }
  return kernels;
}

TEST(GemmTest, FastKernelsAreCloseToDoublePrecision) {
  const Shape shape = {65, 1030};
  const auto w = RandomBFloat16(shape.n * shape.k, 13);
  const auto bias = RandomBFloat16(shape.n, 14);
  auto ops = MakeOps(Schedule::kFast, 1);
  const auto packed = PackBFloat16(*ops, w, shape.n, shape.k);
  const auto& matrix = static_cast<const cpu::CpuPackedMatrix&>(*packed);
  for (const auto& [rows, plan] : FastKernels()) {
    const auto x = RandomBFloat16(rows * shape.k, 15);
    std::vector<BFloat16> y(rows * shape.n);
    const cpu::GemmRange range = {0, rows, 0, matrix.panel_count()};
    const cpu::GemmOutput out = {y.data(), nullptr, bias.data()};
    if (plan.kernel == cpu::GemmKernel::kBf16Dot) {
      cpu::GemmBf16Dot(x.data(), matrix, range, plan.chains, out);
    } else {
      std::vector<float> widened(rows * shape.k);
      cpu::WidenRows(x.data(), 0, rows, shape.k, shape.k, widened.data());
      cpu::GemmFewRows(widened.data(), shape.k, matrix, range, plan.chains, out);
    }
    for (int64_t i = 0; i < rows * shape.n; ++i) {
      double sum = ToFloat(bias[i % shape.n]);
      for (int64_t k = 0; k < shape.k; ++k) {
        sum += double{ToFloat(x[i / shape.n * shape.k + k])} *
               double{ToFloat(w[i % shape.n * shape.k + k])};
      }
      ASSERT_NEAR(ToFloat(y[i]), sum, std::abs(sum) * 0x1p-8 + 1e-3)
          << rows << " rows, " << plan.chains << " chains";
    }
  }
}

TEST(GemmTest, PlansNameKernelsThatExist) {
  for (const int lanes : {4, 8, 16}) {
    for (int32_t rows = 1; rows <= 64; ++rows) {
      for (const int64_t k : {1, 7, 576}) {
        const cpu::GemmPlan scalar = cpu::PlanGemm(Schedule::kFast, rows, k, false, lanes);
        EXPECT_NE(scalar.kernel, cpu::GemmKernel::kBf16Dot);
        if (scalar.kernel == cpu::GemmKernel::kFewRows) {
          EXPECT_LE(rows * scalar.chains, 4);
        }
        const cpu::GemmPlan dot = cpu::PlanGemm(Schedule::kFast, rows, k, true, lanes);
        EXPECT_EQ(dot.kernel == cpu::GemmKernel::kBf16Dot, k % 2 == 0);
        if (dot.chains > 1) {
          EXPECT_LE(rows * dot.chains, 8);
        }
      }
    }
  }
}

TEST(GemmTest, PackStacksPartsAndConvertsToBFloat16) {
  const int64_t k = 9;
  const std::vector<float> floats = {1.0f,  1.01171875f, -2.5f, 3e-5f, 0.0f,
                                     -0.0f, 7.0f,        8.0f,  9.0f};
  const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x0000,
                                        0x8000, 0x3555, 0x0400, 0x3800};
  const std::vector<double> half_values = {1.0, -2.0,           0x1p-24, 65504.0, 0.0,
                                           0.0, 0.333251953125, 0x1p-14, 0.5};
  const MatrixPart parts[] = {{floats.data(), DType::kFloat32, 1, k, k},
                              {halves.data(), DType::kFloat16, 1, k, k}};
  auto ops = MakeOps(Schedule::kCanonical, 1);
  const auto packed = ops->PackMatrix(parts);
  ASSERT_TRUE(packed.ok());
  ASSERT_EQ((*packed)->n(), 2);
  const std::vector<int32_t> ids = {1, 0};
  Pass pass;
  pass.row_count = 2;
  pass.token_ids = ids;
  std::vector<BFloat16> rows(2 * k);
  ops->BeginPass(pass);
  ops->Embed(**packed, rows.data());
  ASSERT_TRUE(ops->EndPass().ok());
  for (int64_t i = 0; i < k; ++i) {
    EXPECT_EQ(rows[i].bits,
              ToBFloat16(static_cast<float>(half_values[i])).bits | (i == 5 ? 0x8000 : 0));
    EXPECT_EQ(rows[k + i].bits, ToBFloat16(floats[i]).bits);
  }
}

TEST(GemmTest, PackRejectsPartsThatDoNotFit) {
  const std::vector<BFloat16> data(64);
  auto ops = MakeOps(Schedule::kFast, 1);
  const MatrixPart different[] = {{data.data(), DType::kBFloat16, 2, 8, 8},
                                  {data.data(), DType::kBFloat16, 2, 9, 9}};
  EXPECT_EQ(ops->PackMatrix(different).status().code(), absl::StatusCode::kInvalidArgument);
  const MatrixPart overlapping[] = {{data.data(), DType::kBFloat16, 2, 8, 7}};
  EXPECT_EQ(ops->PackMatrix(overlapping).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops->PackMatrix({}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace selfsame
