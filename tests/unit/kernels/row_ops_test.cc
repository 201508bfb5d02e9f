#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/exp_log.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace selfsame {
namespace {

using testing::ForcedTarget;
using testing::MakeOps;
using testing::RandomBFloat16;
using testing::SameBits;

constexpr float kEpsilon = 1e-5f;
constexpr int32_t kWidths[] = {1, 7, 16, 33, 64, 576, 1536};

std::vector<BFloat16> ScalarRmsNorm(const std::vector<BFloat16>& x,
                                    const std::vector<BFloat16>& weight, int32_t width) {
  std::vector<BFloat16> out;
  for (size_t row = 0; row < x.size(); row += width) {
    float lanes[16] = {};
    for (int32_t i = 0; i < width; ++i) {
      const float value = ToFloat(x[row + i]);
      lanes[i % 16] = std::fma(value, value, lanes[i % 16]);
    }
    const float mean = testing::SumVirtualLanes(lanes) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(mean + kEpsilon);
    for (int32_t i = 0; i < width; ++i) {
      const float normal = ToFloat(ToBFloat16(ToFloat(x[row + i]) * scale));
      out.push_back(ToBFloat16(normal * ToFloat(weight[i])));
    }
  }
  return out;
}

TEST(RowOpsTest, RmsNormEqualsTheScalarDefinitionOnEveryTarget) {
  for (const int32_t width : kWidths) {
    const int32_t rows = 40;
    const auto x = RandomBFloat16(rows * width, 1, 3.0f);
    const auto weight = RandomBFloat16(width, 2);
    const auto expected = ScalarRmsNorm(x, weight, width);
    for (const Schedule schedule : {Schedule::kFast, Schedule::kCanonical}) {
      auto ops = MakeOps(schedule, 2);
      for (const int64_t target : testing::UsableTargets()) {
        const ForcedTarget forced(target);
        std::vector<BFloat16> out(x.size());
        ops->RmsNorm(x.data(), weight.data(), kEpsilon, rows, width, out.data());
        EXPECT_TRUE(SameBits(out, expected)) << "width " << width << " target " << target;
      }
    }
  }
}

TEST(RowOpsTest, RmsNormIsCloseToDoublePrecision) {
  const int32_t width = 576;
  const auto x = RandomBFloat16(width, 3, 5.0f);
  const auto weight = RandomBFloat16(width, 4, 2.0f);
  auto ops = MakeOps(Schedule::kCanonical, 1);
  std::vector<BFloat16> out(width);
  ops->RmsNorm(x.data(), weight.data(), kEpsilon, 1, width, out.data());
  double squares = 0.0;
  for (const BFloat16 value : x) squares += double{ToFloat(value)} * ToFloat(value);
  const double scale = 1.0 / std::sqrt(squares / width + double{kEpsilon});
  for (int32_t i = 0; i < width; ++i) {
    const double expected = ToFloat(x[i]) * scale * ToFloat(weight[i]);
    ASSERT_NEAR(ToFloat(out[i]), expected, std::abs(expected) * 0x1.02p-7);
  }
}

TEST(RowOpsTest, AddRmsNormRoundsTheResidualFirst) {
  const int32_t rows = 5;
  const int32_t width = 33;
  const auto x = RandomBFloat16(rows * width, 5);
  const auto weight = RandomBFloat16(width, 6);
  const auto before = RandomBFloat16(rows * width, 7, 100.0f);
  std::vector<BFloat16> sum;
  for (size_t i = 0; i < x.size(); ++i) {
    sum.push_back(ToBFloat16(ToFloat(before[i]) + ToFloat(x[i])));
  }
  for (const int64_t target : testing::UsableTargets()) {
    const ForcedTarget forced(target);
    auto ops = MakeOps(Schedule::kCanonical, 2);
    auto residual = before;
    std::vector<BFloat16> out(x.size());
    ops->AddRmsNorm(residual.data(), x.data(), weight.data(), kEpsilon, rows, width, out.data());
    EXPECT_TRUE(SameBits(residual, sum));
    EXPECT_TRUE(SameBits(out, ScalarRmsNorm(sum, weight, width)));
  }
}

TEST(RowOpsTest, SiluMulEqualsTheScalarDefinitionAndIsCloseToDoublePrecision) {
  for (const int32_t width : kWidths) {
    const int32_t rows = 3;
    auto gate_up = RandomBFloat16(rows * 2 * width, 8, 20.0f);
    gate_up[0] = ToBFloat16(-1000.0f);
    std::vector<BFloat16> expected;
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < width; ++i) {
        const float gate = ToFloat(gate_up[row * 2 * width + i]);
        const float up = ToFloat(gate_up[row * 2 * width + width + i]);
        expected.push_back(ToBFloat16(gate / (1.0f + cpu::Exp(-gate)) * up));
        const double exact = gate / (1.0 + std::exp(-double{gate})) * up;
        ASSERT_NEAR(ToFloat(expected.back()), exact, std::abs(exact) * 0x1.02p-8 + 1e-30);
      }
    }
    for (const int64_t target : testing::UsableTargets()) {
      const ForcedTarget forced(target);
      auto ops = MakeOps(Schedule::kCanonical, 2);
      std::vector<BFloat16> out(rows * width);
      ops->SiluMul(gate_up.data(), rows, width, out.data());
      EXPECT_TRUE(SameBits(out, expected)) << "width " << width << " target " << target;
    }
  }
}

struct RopeCase {
  AttentionShape shape;
  int32_t first_position;
  int32_t rows;
};

TEST(RowOpsTest, RopeRotatesAndStoresKeysAndValuesOfCoveredRowsOnly) {
  constexpr int32_t kPositions = 64;
  constexpr RopeCase kCases[] = {{{9, 3, 64}, 13, 6}, {{2, 1, 32}, 0, 17}, {{1, 1, 8}, 47, 2}};
  for (const RopeCase& c : kCases) {
    const int32_t half = c.shape.head_dim / 2;
    const int32_t width = c.shape.qkv_width();
    testing::Random random(9);
    std::vector<float> cos, sin;
    for (int32_t i = 0; i < kPositions * half; ++i) {
      const float angle = random.Symmetric() * 3.0f;
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    const int32_t row_count = c.rows + 1;  // row 0 is padding
    const auto before = RandomBFloat16(row_count * width, 10);
    const std::vector<int32_t> table = {3, 1, 2, 0};
    const SequenceRows sequence = {1, c.rows, c.first_position, table.data()};
    const std::vector<int32_t> zeros(row_count);
    Pass pass;
    pass.row_count = row_count;
    pass.token_ids = zeros;
    pass.positions = zeros;
    pass.sequences = {&sequence, 1};
    for (const int64_t target : testing::UsableTargets()) {
      const ForcedTarget forced(target);
      auto ops = MakeOps(Schedule::kCanonical, 2);
      auto qkv = before;
      const int64_t block_elements = int64_t{2} * c.shape.kv_head_count * 16 * c.shape.head_dim;
      std::vector<BFloat16> kv(4 * block_elements, BFloat16{0x7fc1});
      ops->BeginPass(pass);
      ops->RopeAndStoreKv(c.shape, nullptr, {cos.data(), sin.data(), kPositions}, qkv.data(),
                          {kv.data()});
      ASSERT_TRUE(ops->EndPass().ok());
      int64_t written = 0;
      for (int32_t row = 0; row < c.rows; ++row) {
        const int32_t position = c.first_position + row;
        for (int32_t head = 0; head < c.shape.head_count + c.shape.kv_head_count; ++head) {
          const int64_t at = int64_t{row + 1} * width + head * c.shape.head_dim;
          for (int32_t i = 0; i < half; ++i) {
            const float a = ToFloat(before[at + i]);
            const float b = ToFloat(before[at + half + i]);
            const float cosine = cos[position * half + i];
            const float sine = sin[position * half + i];
            ASSERT_EQ(qkv[at + i].bits, ToBFloat16(std::fma(a, cosine, -(b * sine))).bits);
            ASSERT_EQ(qkv[at + half + i].bits, ToBFloat16(std::fma(b, cosine, a * sine)).bits);
          }
        }
        for (int32_t head = 0; head < 2 * c.shape.kv_head_count; ++head) {
          const int64_t slot = table[position / 16] * block_elements +
                               (int64_t{head} * 16 + position % 16) * c.shape.head_dim;
          const int64_t from =
              int64_t{row + 1} * width + (c.shape.head_count + head) * c.shape.head_dim;
          for (int32_t i = 0; i < c.shape.head_dim; ++i) {
            ASSERT_EQ(kv[slot + i].bits, qkv[from + i].bits);
          }
          written += c.shape.head_dim;
        }
      }
      EXPECT_EQ(std::count_if(kv.begin(), kv.end(), [](BFloat16 v) { return v.bits != 0x7fc1; }),
                written);
    }
  }
}

// Without a turn (cos 1, sin 0), rotating leaves what the norm gives.
TEST(RowOpsTest, QkNormNormalisesEachHeadAndLeavesValuesAlone) {
  const AttentionShape shape = {4, 2, 32};
  const int32_t rows = 3;
  const auto before = RandomBFloat16(rows * shape.qkv_width(), 11);
  const auto q_weight = RandomBFloat16(shape.head_dim, 12);
  const auto k_weight = RandomBFloat16(shape.head_dim, 13);
  const std::vector<int32_t> zeros(rows);
  Pass pass;
  pass.row_count = rows;
  pass.token_ids = zeros;
  pass.positions = zeros;
  const std::vector<float> cos(shape.head_dim / 2, 1.0f);
  const std::vector<float> sin(shape.head_dim / 2, 0.0f);
  const QkNorm norm = {q_weight.data(), k_weight.data(), kEpsilon};
  auto ops = MakeOps(Schedule::kCanonical, 2);
  auto qkv = before;
  ops->BeginPass(pass);
  ops->RopeAndStoreKv(shape, &norm, {cos.data(), sin.data(), 1}, qkv.data(), {});
  ASSERT_TRUE(ops->EndPass().ok());
  for (int32_t head = 0; head < rows * 8; ++head) {
    const auto first = before.begin() + head * shape.head_dim;
    const std::vector<BFloat16> original(first, first + shape.head_dim);
    const int32_t kind = head % 8 < 4 ? 0 : head % 8 < 6 ? 1 : 2;
    const auto expected =
        kind == 2 ? original
                  : ScalarRmsNorm(original, kind == 0 ? q_weight : k_weight, shape.head_dim);
    const auto got = qkv.begin() + head * shape.head_dim;
    EXPECT_TRUE(SameBits({got, got + shape.head_dim}, expected)) << "head " << head;
  }
}

TEST(RowOpsTest, GatherTakesLogitRowsInTheirOrder) {
  const auto x = RandomBFloat16(5 * 3, 14);
  const std::vector<int32_t> zeros(5);
  const std::vector<int32_t> logit_rows = {4, 0, 4};
  Pass pass;
  pass.row_count = 5;
  pass.token_ids = zeros;
  pass.positions = zeros;
  pass.logit_rows = logit_rows;
  auto ops = MakeOps(Schedule::kFast, 1);
  std::vector<BFloat16> out(9);
  ops->BeginPass(pass);
  ops->GatherLogitRows(x.data(), 3, out.data());
  ASSERT_TRUE(ops->EndPass().ok());
  for (int32_t i = 0; i < 9; ++i) EXPECT_EQ(out[i].bits, x[logit_rows[i / 3] * 3 + i % 3].bits);
}

}  // namespace
}  // namespace selfsame
