#include "kernels/cpu/top_logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/unit/kernels/kernel_testing.h"

namespace selfsame {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<SampledToken> SampleAll(const std::vector<float>& logits, int32_t vocab,
                                    const std::vector<SampleRow>& rows, int threads = 1) {
  auto ops = testing::MakeOps(Schedule::kCanonical, threads);
  std::vector<SampledToken> out(rows.size());
  ops->Sample(logits.data(), vocab, rows, out);
  return out;
}

SampledToken SampleOne(const std::vector<float>& logits, const SampleRow& row) {
  return SampleAll(logits, static_cast<int32_t>(logits.size()), {row}).front();
}

std::vector<float> RandomLogits(int64_t count, uint64_t seed, float scale) {
  testing::Random random(seed);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = random.Symmetric() * scale;
  return logits;
}

// By sorting everything.
std::vector<int32_t> FirstTokens(const std::vector<float>& logits, int32_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  ids.resize(std::min<size_t>(ids.size(), count));
  return ids;
}

std::vector<int32_t> IdsOf(const TopLogprobs& top) {
  std::vector<int32_t> ids;
  for (const TokenLogprob& token : top) ids.push_back(token.token_id);
  return ids;
}

TEST(TopLogprobsTest, AreTheFirstTokensOfASortOfAll) {
  for (const int32_t vocab : {1, 3, 16, 33, 1024, 5001}) {
    // A wide spread, where few tokens are near the best, and a narrow one, where all are.
    for (const float scale : {0.01f, 5.0f, 400.0f, 1e5f}) {
      const auto logits = RandomLogits(vocab, 7, scale);
      double sum = 0.0;
      const double max = *std::max_element(logits.begin(), logits.end());
      for (const float logit : logits) sum += std::exp(logit - max);
      for (const int32_t count : {1, 2, 5, 20}) {
        for (const int64_t target : testing::UsableTargets()) {
          const testing::ForcedTarget forced(target);
          const SampledToken sampled = SampleOne(logits, {.top_count = count});
          ASSERT_EQ(IdsOf(sampled.top), FirstTokens(logits, count)) << vocab << " " << scale;
          for (const TokenLogprob& token : sampled.top) {
            EXPECT_NEAR(token.logprob, logits[token.token_id] - max - std::log(sum),
                        4e-6 + 1e-7 * scale);
          }
          EXPECT_EQ(sampled.top.front(), (TokenLogprob{sampled.token_id, sampled.logprob}));
        }
      }
    }
  }
}

TEST(TopLogprobsTest, TiesAreInOrderOfTokenId) {
  std::vector<float> logits(300, 1.0f);
  logits[250] = 2.0f;
  logits[40] = 2.0f;
  logits[0] = -1.0f;
  EXPECT_EQ(IdsOf(SampleOne(logits, {.top_count = 5}).top),
            (std::vector<int32_t>{40, 250, 1, 2, 3}));
  const std::vector<float> zeros = {-0.0f, 0.0f, -0.0f};
  EXPECT_EQ(IdsOf(SampleOne(zeros, {.top_count = 2}).top), (std::vector<int32_t>{0, 1}));
}

TEST(TopLogprobsTest, NonFiniteLogitsComeLastAndAVocabularyMayBeSmall) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const SampledToken sampled = SampleOne({nan, 1.0f, -kInfinity, kInfinity}, {.top_count = 20});
  EXPECT_EQ(IdsOf(sampled.top), (std::vector<int32_t>{3, 1, 0, 2}));
  EXPECT_EQ(sampled.top[2].logprob, -kInfinity);
  EXPECT_EQ(sampled.top[3].logprob, -kInfinity);
  const SampledToken nothing = SampleOne({nan, -kInfinity, nan}, {.top_count = 2});
  EXPECT_EQ(nothing.top, (TopLogprobs{{0, -kInfinity}, {1, -kInfinity}}));
}

// The bits are those of the same token chosen by sampling.
TEST(TopLogprobsTest, AGivenTokenIsTakenWithItsLogprob) {
  const auto logits = RandomLogits(2000, 9, 4.0f);
  const SampledToken best = SampleOne(logits, {});
  const auto given = [&](int32_t token) {
    return SampleOne(logits, {.temperature = 1.0f, .seed = 4, .given_token = token});
  };
  EXPECT_EQ(given(best.token_id).logprob, best.logprob);
  for (const int32_t token : {0, 17, 1999}) {
    EXPECT_EQ(given(token).token_id, token);
    EXPECT_LE(given(token).logprob, best.logprob);
    EXPECT_TRUE(given(token).top.empty());
  }
  for (const TokenLogprob& token : SampleOne(logits, {.top_count = 20}).top) {
    EXPECT_EQ(given(token.token_id).logprob, token.logprob);
  }
  const std::vector<float> holes = {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  EXPECT_EQ(SampleOne(holes, {.given_token = 0}).logprob, -kInfinity);
}

TEST(TopLogprobsTest, DoNotDependOnNeighboursNorChangeTheChoice) {
  constexpr int32_t kVocab = 700;
  std::vector<SampleRow> rows;
  for (int32_t i = 0; i < 8; ++i) {
    rows.push_back({.temperature = i % 2 == 0 ? 0.0f : 1.0f,
                    .top_k = i % 3 == 0 ? 10 : 0,
                    .seed = static_cast<uint64_t>(i),
                    .position = 9,
                    .given_token = i == 5 ? 123 : -1,
                    .top_count = i % 4 * 6});
  }
  const auto logits = RandomLogits(int64_t{8} * kVocab, 3, 3.0f);
  for (const int threads : {1, 3}) {
    const auto together = SampleAll(logits, kVocab, rows, threads);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> own(logits.begin() + i * kVocab, logits.begin() + (i + 1) * kVocab);
      const SampledToken alone = SampleOne(own, rows[i]);
      EXPECT_EQ(together[i].token_id, alone.token_id);
      EXPECT_EQ(together[i].logprob, alone.logprob);
      EXPECT_EQ(together[i].top, alone.top);
      SampleRow plain = rows[i];
      plain.top_count = 0;
      EXPECT_EQ(SampleOne(own, plain).token_id, alone.token_id);
      EXPECT_EQ(SampleOne(own, plain).logprob, alone.logprob);
    }
  }
}

}  // namespace
}  // namespace selfsame
