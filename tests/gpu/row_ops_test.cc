#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {
namespace {

constexpr int32_t kMaxRows = 70;
constexpr float kEpsilon = 1e-5f;
// A few units in the last place of bf16: two roundings and a float sum.
constexpr double kBound = 8e-3;

class RowOpsTest : public ::testing::Test {
 protected:
  RowOpsTest() : ops_(MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = kMaxRows})) {}

  std::vector<BFloat16> Result(const std::unique_ptr<DeviceBuffer>& buffer) {
    return Download<BFloat16>(*ops_, buffer->data(), buffer->size_bytes() / sizeof(BFloat16));
  }
  std::unique_ptr<DeviceBuffer> Poisoned(int64_t count) {
    return Upload(*ops_, std::vector<BFloat16>(static_cast<size_t>(count), kPoison));
  }

  std::unique_ptr<Ops> ops_;
};

std::vector<double> NormReference(std::span<const double> x, std::span<const double> weight) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + kEpsilon);
  std::vector<double> out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * weight[i]);
  return out;
}

TEST_F(RowOpsTest, RmsNormMatchesADoubleReferenceAtOddWidths) {
  for (const int32_t width : {1, 7, 64, 576, 577, 4096, 8200}) {
    for (const int32_t rows : {1, 3, 65}) {
      const auto x = RandomRows(1, int64_t{rows} * width, 3.0f);
      const auto weight = RandomRows(2, width);
      const auto out = Poisoned(int64_t{rows} * width);
      const auto x_device = Upload(*ops_, x);
      const auto weight_device = Upload(*ops_, weight);
      ops_->RmsNorm(Rows(x_device), Rows(weight_device), kEpsilon, rows, width, Rows(out));
      const auto got = ToDouble(Result(out));
      const auto inputs = ToDouble(x);
      for (int32_t row = 0; row < rows; ++row) {
        const auto from = static_cast<size_t>(row) * static_cast<size_t>(width);
        const auto count = static_cast<size_t>(width);
        const auto reference =
            NormReference(std::span(inputs).subspan(from, count), ToDouble(weight));
        EXPECT_LT(RelativeError(std::span(got).subspan(from, count), reference), kBound)
            << "width " << width << " row " << row;
      }
    }
  }
}

// The definition in row_ops.h, one operation after the other.
std::vector<BFloat16> DefinedNorm(std::span<const BFloat16> x, std::span<const BFloat16> weight) {
  constexpr size_t kThreads = 256;
  std::array<float, kThreads> threads{};
  for (size_t i = 0; i < x.size(); ++i) {
    float& sum = threads[i / 8 % kThreads];
    sum = std::fma(ToFloat(x[i]), ToFloat(x[i]), sum);
  }
  float total = 0.0f;
  for (size_t first = 0; first < kThreads; first += 32) {
    std::array<float, 32> lanes{};
    std::copy_n(threads.begin() + first, lanes.size(), lanes.begin());
    total = first == 0 ? Butterfly(lanes) : total + Butterfly(lanes);
  }
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(x.size()) + kEpsilon);
  std::vector<BFloat16> out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back(ToBFloat16(ToFloat(ToBFloat16(ToFloat(x[i]) * scale)) * ToFloat(weight[i])));
  }
  return out;
}

TEST_F(RowOpsTest, NormsHaveTheBitsOfTheirDefinition) {
  for (const int32_t width : {1, 8, 577, 2048, 2056, 4096, 4104, 8192, 8200, 16392}) {
    const int32_t rows = 3;
    const auto count = static_cast<size_t>(width);
    const auto weight = RandomRows(22, width);
    const auto weight_device = Upload(*ops_, weight);
    const auto residual = RandomRows(20, int64_t{rows} * width, 2.0f);
    const auto x = RandomRows(21, int64_t{rows} * width, 0.7f);
    const auto residual_device = Upload(*ops_, residual);
    const auto x_device = Upload(*ops_, x);
    const auto out = Poisoned(int64_t{rows} * width);
    const auto plain = Poisoned(int64_t{rows} * width);
    ops_->RmsNorm(Rows(x_device), Rows(weight_device), kEpsilon, rows, width, Rows(plain));
    ops_->AddRmsNorm(Rows(residual_device), Rows(x_device), Rows(weight_device), kEpsilon, rows,
                     width, Rows(out));
    const auto got = Result(out);
    const auto got_plain = Result(plain);
    std::vector<BFloat16> sums;
    for (size_t i = 0; i < x.size(); ++i) {
      sums.push_back(ToBFloat16(ToFloat(residual[i]) + ToFloat(x[i])));
    }
    EXPECT_EQ(CountDifferent(Result(residual_device), sums), 0u) << "width " << width;
    for (size_t row = 0; row < rows; ++row) {
      const auto part = [&](const std::vector<BFloat16>& all) {
        return std::span<const BFloat16>(all).subspan(row * count, count);
      };
      EXPECT_EQ(CountDifferent(part(got), DefinedNorm(part(sums), weight)), 0u) << width;
      EXPECT_EQ(CountDifferent(part(got_plain), DefinedNorm(part(x), weight)), 0u) << width;
    }
  }
}

TEST_F(RowOpsTest, AddRmsNormRoundsTheSumOnceAndNormsWhatItRounded) {
  for (const int32_t width : {577, 4096}) {
    const int32_t rows = 5;
    const auto residual = RandomRows(3, int64_t{rows} * width);
    const auto x = RandomRows(4, int64_t{rows} * width);
    const auto weight = Upload(*ops_, RandomRows(5, width));
    const auto residual_device = Upload(*ops_, residual);
    const auto x_device = Upload(*ops_, x);
    const auto out = Poisoned(int64_t{rows} * width);
    ops_->AddRmsNorm(Rows(residual_device), Rows(x_device), Rows(weight), kEpsilon, rows, width,
                     Rows(out));
    const auto sums = Result(residual_device);
    for (size_t i = 0; i < sums.size(); ++i) {
      ASSERT_EQ(sums[i].bits, ToBFloat16(ToFloat(residual[i]) + ToFloat(x[i])).bits);
    }
    const auto plain = Poisoned(int64_t{rows} * width);
    ops_->RmsNorm(Rows(residual_device), Rows(weight), kEpsilon, rows, width, Rows(plain));
    EXPECT_EQ(CountDifferent(Result(out), Result(plain)), 0u);
  }
}

TEST_F(RowOpsTest, ARowHasTheSameBitsAloneAndAmongOthers) {
  const int32_t width = 4096;
  const auto x = Upload(*ops_, RandomRows(6, int64_t{kMaxRows} * width));
  const auto weight = Upload(*ops_, RandomRows(7, width));
  const auto all = Poisoned(int64_t{kMaxRows} * width);
  ops_->RmsNorm(Rows(x), Rows(weight), kEpsilon, kMaxRows, width, Rows(all));
  const auto expected = Result(all);
  for (const int32_t row : {0, 1, 33, 69}) {
    const auto one = Poisoned(width);
    ops_->RmsNorm(Rows(x) + row * width, Rows(weight), kEpsilon, 1, width, Rows(one));
    EXPECT_EQ(CountDifferent(Result(one),
                             std::span(expected).subspan(static_cast<size_t>(row) * width, width)),
              0u);
  }
}

TEST_F(RowOpsTest, SiluMulMatchesADoubleReference) {
  for (const int32_t width : {9, 1536, 14336}) {
    const int32_t rows = 3;
    const auto gate_up = RandomRows(8, int64_t{rows} * 2 * width, 4.0f);
    const auto gate_up_device = Upload(*ops_, gate_up);
    const auto out = Poisoned(int64_t{rows} * width);
    ops_->SiluMul(Rows(gate_up_device), rows, width, Rows(out));
    std::vector<double> reference;
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < width; ++i) {
        const size_t place =
            static_cast<size_t>(row) * 2 * static_cast<size_t>(width) + static_cast<size_t>(i);
        const double gate = ToFloat(gate_up[place]);
        const double up = ToFloat(gate_up[place + static_cast<size_t>(width)]);
        reference.push_back(gate / (1.0 + std::exp(-gate)) * up);
      }
    }
    EXPECT_LT(RelativeError(ToDouble(Result(out)), reference), kBound) << "width " << width;
  }
}

TEST_F(RowOpsTest, EmbedAndGatherCopyTheNamedRows) {
  for (const int32_t width : {576, 577}) {
    const int32_t vocab = 300;
    const auto table = RandomRows(9, int64_t{vocab} * width);
    const auto packed = Pack(*ops_, table, vocab, width);
    const std::vector<int32_t> tokens = {5, 299, 0, 5};
    const std::vector<int32_t> positions(tokens.size(), 0);
    const std::vector<int32_t> logit_rows = {3, 1};
    const Pass pass = {.row_count = 4,
                       .token_ids = tokens,
                       .positions = positions,
                       .sequences = {},
                       .logit_rows = logit_rows};
    const auto embedded = Poisoned(int64_t{4} * width);
    const auto gathered = Poisoned(int64_t{2} * width);
    ops_->BeginPass(pass);
    ops_->Embed(*packed, Rows(embedded));
    ops_->GatherLogitRows(Rows(embedded), width, Rows(gathered));
    ASSERT_TRUE(ops_->EndPass().ok());
    const auto rows = Result(embedded);
    const auto picked = Result(gathered);
    const auto count = static_cast<size_t>(width);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto token = static_cast<size_t>(tokens[i]);
      EXPECT_EQ(CountDifferent(std::span(rows).subspan(i * count, count),
                               std::span(table).subspan(token * count, count)),
                0u);
    }
    for (size_t i = 0; i < logit_rows.size(); ++i) {
      const auto row = static_cast<size_t>(logit_rows[i]);
      EXPECT_EQ(CountDifferent(std::span(picked).subspan(i * count, count),
                               std::span(rows).subspan(row * count, count)),
                0u);
    }
  }
}

// One sequence of `rows` rows from `first_position` on, in block 1 and the ones after it; one
// padding row follows.
struct RopeCase {
  AttentionShape shape;
  int32_t rows = 0;
  int32_t first_position = 0;
};

void CheckRope(Ops& ops, const RopeCase& test) {
  const AttentionShape& shape = test.shape;
  const int32_t all_rows = test.rows + 1;
  const int32_t half = shape.head_dim / 2;
  const int32_t last = test.first_position + test.rows;
  std::vector<float> cos;
  std::vector<float> sin;
  for (int32_t position = 0; position < last; ++position) {
    for (int32_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / shape.head_dim);
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  const auto cos_device = Upload(ops, cos);
  const auto sin_device = Upload(ops, sin);
  const auto qkv = RandomRows(10, int64_t{all_rows} * shape.qkv_width());
  const auto qkv_device = Upload(ops, qkv);
  const int32_t blocks = (last + kKvBlockTokens - 1) / kKvBlockTokens;
  std::vector<int32_t> table;
  for (int32_t i = 0; i < blocks; ++i) table.push_back(blocks - i);
  const int64_t block_size = int64_t{2} * shape.kv_head_count * kKvBlockTokens * shape.head_dim;
  const auto kv =
      Upload(ops, std::vector<BFloat16>(static_cast<size_t>((blocks + 1) * block_size), kPoison));

  std::vector<int32_t> tokens(static_cast<size_t>(all_rows), 0);
  std::vector<int32_t> positions(static_cast<size_t>(all_rows), 0);
  for (int32_t i = 0; i < test.rows; ++i) {
    positions[static_cast<size_t>(i)] = test.first_position + i;
  }
  const SequenceRows sequence = {.first_row = 0,
                                 .row_count = test.rows,
                                 .first_position = test.first_position,
                                 .block_table = table.data()};
  ops.BeginPass({.row_count = all_rows,
                 .token_ids = tokens,
                 .positions = positions,
                 .sequences = {&sequence, 1},
                 .logit_rows = {}});
  ops.RopeAndStoreKv(shape, nullptr,
                     {.cos = static_cast<const float*>(cos_device->data()),
                      .sin = static_cast<const float*>(sin_device->data()),
                      .max_positions = last},
                     Rows(qkv_device), {Rows(kv)});
  ASSERT_TRUE(ops.EndPass().ok());
  const auto got = Download<BFloat16>(ops, qkv_device->data(), qkv.size());
  const auto cached = Download<BFloat16>(ops, kv->data(), kv->size_bytes() / sizeof(BFloat16));

  size_t stored = 0;
  const int32_t rotated_heads = shape.head_count + shape.kv_head_count;
  for (int32_t row = 0; row < test.rows; ++row) {
    const int32_t position = test.first_position + row;
    for (int32_t head = 0; head < rotated_heads + shape.kv_head_count; ++head) {
      const size_t from = static_cast<size_t>(row) * static_cast<size_t>(shape.qkv_width()) +
                          static_cast<size_t>(head * shape.head_dim);
      for (int32_t i = 0; i < shape.head_dim; ++i) {
        const auto angle = static_cast<size_t>(position * half + i % half);
        const float own = ToFloat(qkv[from + static_cast<size_t>(i)]);
        const float other = ToFloat(qkv[from + static_cast<size_t>((i + half) % (2 * half))]);
        const float turned = other * sin[angle];
        const float rotated = std::fma(own, cos[angle], i < half ? -turned : turned);
        const BFloat16 value = got[from + static_cast<size_t>(i)];
        ASSERT_EQ(value.bits,
                  head < rotated_heads ? ToBFloat16(rotated).bits : ToBFloat16(own).bits)
            << "position " << position << " head " << head << " element " << i;
        if (head < shape.head_count) continue;
        const int32_t kv_head = head - shape.head_count;  // K heads, then V heads
        const int64_t place =
            table[static_cast<size_t>(position / kKvBlockTokens)] * block_size +
            (int64_t{kv_head} * kKvBlockTokens + position % kKvBlockTokens) * shape.head_dim + i;
        ASSERT_EQ(cached[static_cast<size_t>(place)].bits, value.bits);
        ++stored;
      }
    }
  }
  size_t written = 0;
  for (const BFloat16 value : cached) written += value.bits != kPoison.bits ? 1 : 0;
  EXPECT_EQ(written, stored) << "a padding row, or a row beyond its place, wrote to the cache";
}

TEST_F(RowOpsTest, RopeRotatesStoresAndLeavesTheRestOfTheCacheAlone) {
  CheckRope(*ops_, {{.head_count = 9, .kv_head_count = 3, .head_dim = 64}, 37, 5});
  CheckRope(*ops_, {{.head_count = 32, .kv_head_count = 8, .head_dim = 128}, 3, 1030});
  CheckRope(*ops_, {{.head_count = 3, .kv_head_count = 1, .head_dim = 16}, 1, 0});
  CheckRope(*ops_, {{.head_count = 4, .kv_head_count = 2, .head_dim = 80}, 33, 2});
}

// One head as row_ops.h says: thread t has elements 8t .. 8t+7 and half + 8t ...
std::vector<BFloat16> ScalarQkNorm(std::span<const BFloat16> x, std::span<const BFloat16> weight) {
  const size_t half = x.size() / 2;
  std::vector<float> sums(half / 8, 0.0f);
  for (size_t t = 0; t < sums.size(); ++t) {
    for (const size_t first : {8 * t, half + 8 * t}) {
      for (size_t i = first; i < first + 8; ++i) {
        const float value = ToFloat(x[i]);
        sums[t] = std::fma(value, value, sums[t]);
      }
    }
  }
  for (size_t offset = sums.size() / 2; offset > 0; offset /= 2) {
    const std::vector<float> before = sums;
    for (size_t t = 0; t < sums.size(); ++t) sums[t] = before[t] + before[t ^ offset];
  }
  const float scale = 1.0f / std::sqrt(sums[0] / static_cast<float>(x.size()) + kEpsilon);
  std::vector<BFloat16> out;
  for (size_t i = 0; i < x.size(); ++i) {
    const float scaled = ToFloat(ToBFloat16(ToFloat(x[i]) * scale));
    out.push_back(ToBFloat16(scaled * ToFloat(weight[i])));
  }
  return out;
}

// Without a turn (cos 1, sin 0), rotating leaves what the norm gives.
TEST_F(RowOpsTest, QkNormNormsEachHeadAndLeavesValuesAlone) {
  for (const int32_t head_dim : {16, 64, 128, 256}) {
    const AttentionShape shape = {.head_count = 5, .kv_head_count = 2, .head_dim = head_dim};
    const int32_t rows = 7;
    const auto qkv = RandomRows(11, int64_t{rows} * shape.qkv_width(), 2.0f);
    const auto q_weight = RandomRows(12, head_dim);
    const auto k_weight = RandomRows(13, head_dim);
    const auto q_device = Upload(*ops_, q_weight);
    const auto k_device = Upload(*ops_, k_weight);
    const auto qkv_device = Upload(*ops_, qkv);
    const auto half = static_cast<size_t>(head_dim / 2);
    const auto cos = Upload(*ops_, std::vector<float>(half, 1.0f));
    const auto sin = Upload(*ops_, std::vector<float>(half, 0.0f));
    const QkNorm norm = {Rows(q_device), Rows(k_device), kEpsilon};
    const PlainPass plain(rows);
    ops_->BeginPass(plain.pass);
    ops_->RopeAndStoreKv(shape, &norm,
                         {.cos = static_cast<const float*>(cos->data()),
                          .sin = static_cast<const float*>(sin->data()),
                          .max_positions = 1},
                         Rows(qkv_device), {});
    ASSERT_TRUE(ops_->EndPass().ok());
    const auto got = Result(qkv_device);
    const auto count = static_cast<size_t>(head_dim);
    const int32_t heads = shape.head_count + 2 * shape.kv_head_count;
    for (int32_t head = 0; head < rows * heads; ++head) {
      const auto from = static_cast<size_t>(head) * count;
      const int32_t kind = head % heads;
      const auto x = std::span(qkv).subspan(from, count);
      const auto result = std::span(got).subspan(from, count);
      if (kind >= shape.head_count + shape.kv_head_count) {
        EXPECT_EQ(CountDifferent(result, x), 0u);
        continue;
      }
      const auto& weight = kind < shape.head_count ? q_weight : k_weight;
      EXPECT_LE(RelativeError(ToDouble(result), NormReference(ToDouble(x), ToDouble(weight))),
                kBound);
      EXPECT_EQ(CountDifferent(result, ScalarQkNorm(x, weight)), 0u) << "head " << head;
    }
  }
}

}  // namespace
}  // namespace selfsame::testing
