#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/sample_buffers.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/gpu/sampling_testing.h"

namespace selfsame::testing {
namespace {

// The definition of the log-sum-exp in sampling.h, one operation after the other.

float Finite(float logit) {
  return std::isnan(logit) ? -kInfinity : std::min(logit, std::numeric_limits<float>::max()) + 0.0f;
}

float DefinedExp(float x) {
  x = std::isnan(x) ? -88.0f : std::max(x, -88.0f);
  const float shifted = std::fma(x, 0x1.715476p0f, 0x1.8p23f);
  const float n = shifted - 0x1.8p23f;
  float r = std::fma(-n, 0.693359375f, x);
  r = std::fma(-n, -2.12194440e-4f, r);
  float p = std::fma(1.9875691500e-4f, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(r * r, p, r);
  return (p + 1.0f) * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);
}

float DefinedLog(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float f =
      std::bit_cast<float>(std::bit_cast<uint32_t>(x) - (static_cast<uint32_t>(exponent) << 23)) -
      1.0f;
  const auto e = static_cast<float>(exponent);
  const float z = f * f;
  float p = std::fma(7.0376836292e-2f, f, -1.1514610310e-1f);
  p = std::fma(p, f, 1.1676998740e-1f);
  p = std::fma(p, f, -1.2420140846e-1f);
  p = std::fma(p, f, 1.4249322787e-1f);
  p = std::fma(p, f, -1.6668057665e-1f);
  p = std::fma(p, f, 2.0000714765e-1f);
  p = std::fma(p, f, -2.4999993993e-1f);
  p = std::fma(p, f, 3.3333331174e-1f);
  float y = (f * z) * p;
  y = std::fma(e, -2.12194440e-4f, y);
  y = std::fma(-z, 0.5f, y);
  return std::fma(e, 0.693359375f, f + y);
}

float DefinedLogprob(std::span<const float> logits, int32_t token) {
  constexpr size_t kSlice = 1024;
  std::vector<float> maxima;
  std::vector<float> slice_sums;
  for (size_t begin = 0; begin < logits.size(); begin += kSlice) {
    const auto slice = logits.subspan(begin, std::min(kSlice, logits.size() - begin));
    float max = -kInfinity;
    for (const float logit : slice) max = std::max(max, Finite(logit));
    std::array<std::array<float, 4>, 32> sums{};
    for (size_t i = 0; i < slice.size(); ++i) {
      float& sum = sums[i / 4 % 32][i % 4];
      sum = sum + DefinedExp(Finite(slice[i]) - max);
    }
    std::array<float, 32> lanes{};
    for (size_t lane = 0; lane < 32; ++lane) {
      lanes[lane] = (sums[lane][0] + sums[lane][1]) + (sums[lane][2] + sums[lane][3]);
    }
    maxima.push_back(max);
    slice_sums.push_back(Butterfly(lanes));
  }
  const float max = *std::max_element(maxima.begin(), maxima.end());
  if (max == -kInfinity) return -kInfinity;
  std::array<float, 32> lanes{};
  for (size_t i = 0; i < maxima.size(); ++i) {
    lanes[i % 32] = lanes[i % 32] + slice_sums[i] * DefinedExp(maxima[i] - max);
  }
  return (Finite(logits[static_cast<size_t>(token)]) - max) - DefinedLog(Butterfly(lanes));
}

// Rows that are smooth, steep, hardly differ, or have what is not finite.
std::vector<float> HardRow(int kind, int32_t vocab) {
  auto logits = RandomLogits(20 + static_cast<uint64_t>(kind), vocab,
                             kind == 1   ? 40.0f
                             : kind == 2 ? 1e-3f
                                         : 3.0f);
  const auto at = [&](int32_t token) -> float& {
    return logits[static_cast<size_t>(token) % logits.size()];
  };
  if (kind == 3) {
    for (int32_t i = 0; i < vocab; i += 3) at(i) = i % 2 == 0 ? kNan : -kInfinity;
    std::fill_n(logits.begin(), std::min(vocab, 1500), -kInfinity);
  }
  if (kind == 4) at(vocab - 2) = at(vocab / 2) = kInfinity;
  if (kind == 5) std::fill(logits.begin(), logits.end(), -0.0f);
  return logits;
}

TEST_F(SamplingTest, LogprobsHaveTheBitsOfTheirDefinition) {
  for (const int32_t vocab : {1, 3, 1000, 1024, 1025, 2050, 49152, 128256, 151936}) {
    for (int kind = 0; kind < 6; ++kind) {
      const auto logits = HardRow(kind, vocab);
      for (const int32_t token : {-1, 0, vocab / 2, vocab - 1}) {
        const SampledToken sampled = SampleOne(logits, {.given_token = token});
        const float expected = DefinedLogprob(logits, sampled.token_id);
        EXPECT_EQ(CountDifferent(std::span(&sampled.logprob, 1), std::span(&expected, 1)), 0u)
            << "vocab " << vocab << " kind " << kind << " token " << token << ": "
            << sampled.logprob << " for " << expected;
      }
    }
  }
}

// One row among others that differ in everything, at several places, in small and large runs.
TEST_F(SamplingTest, LogprobBitsDependOnTheRowsLogitsAlone) {
  for (const int32_t vocab : {1030, 33001, 128256}) {
    const auto row = HardRow(0, vocab);
    std::vector<SampleRow> kinds(5);
    kinds[1] = {.temperature = 1.3f, .seed = 3, .position = 8};
    kinds[2] = {.temperature = 0.9f, .top_k = 30, .top_p = 0.9f, .min_p = 0.01f, .seed = 4};
    kinds[3] = {.given_token = vocab / 2};
    kinds[4] = {.temperature = 1.0f, .seed = 5, .top_count = 20};
    const auto edits = RandomEdits(9, vocab, 500);
    kinds.push_back(kinds[1]);
    kinds.back().edits = edits;
    std::vector<SampledToken> alone;
    for (const SampleRow& kind : kinds) alone.push_back(SampleOne(row, kind));
    for (const SampledToken& token : alone) {
      const SampledToken given = SampleOne(row, {.given_token = token.token_id});
      EXPECT_EQ(CountDifferent(std::span(&given.logprob, 1), std::span(&token.logprob, 1)), 0u);
      for (const TokenLogprob& top : token.top) {
        const SampledToken given_top = SampleOne(row, {.given_token = top.token_id});
        EXPECT_EQ(CountDifferent(std::span(&given_top.logprob, 1), std::span(&top.logprob, 1)), 0u);
      }
    }
    for (const int32_t rows : {2, 128, 129, kMaxRows}) {
      if (int64_t{rows} * vocab > int64_t{40} << 20) continue;
      std::vector<float> logits;
      std::vector<SampleRow> params;
      for (int32_t i = 0; i < rows; ++i) {
        const bool is_row = i % 2 == 1 || i + 7 > rows;
        const auto own = is_row ? row : HardRow(i % 6, vocab);
        logits.insert(logits.end(), own.begin(), own.end());
        params.push_back(kinds[static_cast<size_t>(i) % kinds.size()]);
      }
      const auto sampled = Sample(logits, vocab, params);
      for (int32_t i = 0; i < rows; ++i) {
        const auto index = static_cast<size_t>(i);
        if (i % 2 == 0 && i + 7 <= rows) continue;
        const SampledToken& expected = alone[index % kinds.size()];
        EXPECT_EQ(sampled[index].token_id, expected.token_id) << vocab << " row " << i;
        EXPECT_EQ(
            CountDifferent(std::span(&sampled[index].logprob, 1), std::span(&expected.logprob, 1)),
            0u);
        EXPECT_EQ(sampled[index].top.size(), expected.top.size());
      }
    }
  }
}

TEST_F(SamplingTest, RowsThatStartAtAnyAddressHaveTheSameBits) {
  const int32_t vocab = 5000;
  auto logits = HardRow(3, vocab + 1);
  const auto device = Upload(*ops_, logits);
  const SampleRow params = {.temperature = 1.0f, .seed = 6, .top_count = 3};
  SampledToken shifted;
  ops_->Sample(static_cast<const float*>(device->data()) + 1, vocab, {&params, 1}, {&shifted, 1});
  logits.erase(logits.begin());
  const SampledToken expected = SampleOne(logits, params);
  EXPECT_EQ(shifted.token_id, expected.token_id);
  EXPECT_EQ(CountDifferent(std::span(&shifted.logprob, 1), std::span(&expected.logprob, 1)), 0u);
  EXPECT_EQ(shifted.top[2].token_id, expected.top[2].token_id);
}

// More edits in one call than the buffers hold at a time.
TEST_F(SamplingTest, AnyNumberOfEditsIsServed) {
  const int32_t vocab = 49152;
  const int32_t rows = 24;
  std::vector<LogitEdit> edits;
  for (int32_t id = 0; id < vocab; ++id) {
    edits.push_back({.token_id = id, .bias = PseudoNormal(30, static_cast<uint64_t>(id)) * 9.0f});
  }
  const auto logits = RandomLogits(31, int64_t{rows} * vocab, 2.0f);
  std::vector<SampleRow> params(static_cast<size_t>(rows));
  for (size_t i = 0; i < params.size(); ++i) {
    params[i] = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i, .top_count = 2};
    if (i % 12 != 5) params[i].edits = std::span(edits).subspan(i);
  }
  size_t edit_count = 0;
  for (const SampleRow& row : params) edit_count += row.edits.size();
  ASSERT_GT(edit_count, cuda::SampleBuffers::kMaxEdits);
  const auto together = Sample(logits, vocab, params);
  const PlainPass plain(3);
  const auto device = Upload(*ops_, logits);
  std::vector<SampledToken> in_pass(params.size());
  ops_->BeginPass(plain.pass);
  ops_->Sample(static_cast<const float*>(device->data()), vocab, params, in_pass);
  ASSERT_TRUE(ops_->EndPass().ok());
  for (size_t i = 0; i < params.size(); ++i) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
    const SampledToken alone = SampleOne({begin, begin + vocab}, params[i]);
    for (const SampledToken& sampled : {together[i], in_pass[i]}) {
      EXPECT_EQ(sampled.token_id, alone.token_id) << i;
      EXPECT_EQ(sampled.logprob, alone.logprob) << i;
      EXPECT_EQ(sampled.top[1].token_id, alone.top[1].token_id) << i;
    }
  }
}

}  // namespace
}  // namespace selfsame::testing
