#include "kernels/cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/gpu/sampling_testing.h"

namespace selfsame::testing {
namespace {

double ReferenceLogprob(std::span<const float> logits, int32_t token) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return logits[static_cast<size_t>(token)] - max - std::log(sum);
}

TEST_F(SamplingTest, GreedyTakesTheLowestOfTheLargestAndItsLogprob) {
  for (const int32_t vocab : {1, 3, 1000, 1024, 49152, 128256, 151936}) {
    auto logits = RandomLogits(1, vocab, 2.0f);
    const int32_t best = vocab / 3;
    logits[static_cast<size_t>(best)] = 20.0f;
    logits.back() = 20.0f;
    const SampledToken sampled = SampleOne(logits, {});
    EXPECT_EQ(sampled.token_id, std::min(best, vocab - 1));
    EXPECT_NEAR(sampled.logprob, ReferenceLogprob(logits, sampled.token_id), 2e-6) << vocab;
  }
}

TEST_F(SamplingTest, ZerosOfEitherSignAreEqual) {
  EXPECT_EQ(SampleOne({-1.0f, -0.0f, 0.0f}, {}).token_id, 1);
}

TEST_F(SamplingTest, RowsWithoutFiniteLogitsGiveTokenZero) {
  const SampledToken sampled = SampleOne({kNan, -kInfinity, kNan}, {.temperature = 1.0f});
  EXPECT_EQ(sampled.token_id, 0);
  EXPECT_EQ(sampled.logprob, -kInfinity);
  EXPECT_EQ(SampleOne({kNan, 3.0f, kInfinity, kInfinity}, {}).token_id, 2);
}

TEST_F(SamplingTest, TopKOfOneIsGreedyWithTiesToTheLowestId) {
  auto logits = RandomLogits(2, 5000, 1.0f);
  logits[4000] = logits[1234] = logits[777] = 9.0f;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(SampleOne(logits, {.temperature = 3.0f, .top_k = 1, .seed = seed}).token_id, 777);
  }
  std::vector<int> counts(5000, 0);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    ++counts[static_cast<size_t>(
        SampleOne(logits, {.temperature = 3.0f, .top_k = 2, .seed = seed}).token_id)];
  }
  EXPECT_EQ(counts[777] + counts[1234], 60);
  EXPECT_GT(counts[777], 0);
  EXPECT_GT(counts[1234], 0);
}

TEST_F(SamplingTest, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.25, 0.125, ..
  std::vector<float> logits;
  for (int i = 0; i < 40; ++i) logits.push_back(-static_cast<float>(i) * std::log(2.0f));
  for (const auto& [top_p, size] : {std::pair{0.49f, 1}, {0.51f, 2}, {0.74f, 2}, {0.76f, 3}}) {
    int32_t largest = 0;
    for (uint64_t seed = 0; seed < 64; ++seed) {
      largest = std::max(
          largest, SampleOne(logits, {.temperature = 1.0f, .top_p = top_p, .seed = seed}).token_id);
    }
    EXPECT_EQ(largest, size - 1) << top_p;
  }
}

// The same definition as on the CPU, with the same polynomials: the same tokens.
TEST_F(SamplingTest, AgreesWithTheCpuBackend) {
  cpu::SampleScratch scratch;
  int compared = 0;
  for (const int32_t vocab : {5, 1001, 49152, 128256}) {
    std::vector<SampleRow> params;
    for (const float temperature : {0.3f, 1.0f, 2.5f}) {
      for (const int32_t top_k : {0, 1, 50, 100000}) {
        for (const float top_p : {1.0f, 0.9f, 0.3f, 0.0f}) {
          params.push_back({.temperature = temperature,
                            .top_k = top_k,
                            .top_p = top_p,
                            .seed = 0x123456789abcdef0u + params.size(),
                            .choice_index = static_cast<int32_t>(params.size() % 3),
                            .position = static_cast<int32_t>(100 + params.size())});
        }
      }
    }
    // Rounded to a coarse grid, so that there are ties.
    auto logits = RandomLogits(3, static_cast<int64_t>(params.size()) * vocab, 3.0f);
    for (float& logit : logits) logit = std::round(logit * 64.0f) / 64.0f;
    const auto sampled = Sample(logits, vocab, params);
    for (size_t i = 0; i < params.size(); ++i) {
      const float* row = logits.data() + i * static_cast<size_t>(vocab);
      const SampledToken expected = cpu::SampleToken(row, vocab, params[i], scratch);
      EXPECT_EQ(sampled[i].token_id, expected.token_id) << "vocab " << vocab << " row " << i;
      EXPECT_NEAR(sampled[i].logprob,
                  ReferenceLogprob({row, static_cast<size_t>(vocab)}, sampled[i].token_id), 4e-6);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 4 * 48);
}

// Rows of which a short list has all that is kept, and rows of which none has: steep, flat, and
// with all logits the same.
TEST_F(SamplingTest, FiltersAgreeWithTheCpuBackendHoweverManyTokensTheyKeep) {
  cpu::SampleScratch scratch;
  for (const int32_t vocab : {2049, 20001, 128256}) {
    for (const float scale : {40.0f, 6.0f, 2.0f, 0.01f, 0.0f}) {
      const auto row = RandomLogits(40, vocab, scale);
      std::vector<SampleRow> params;
      for (const int32_t top_k : {0, 2, 40, 126, 127, 1500}) {
        for (const float top_p : {1.0f, 0.95f, 0.2f}) {
          for (const float min_p : {0.0f, 1e-6f, 0.1f}) {
            params.push_back({.temperature = 0.5f + 0.5f * static_cast<float>(params.size() % 3),
                              .top_k = top_k,
                              .top_p = top_p,
                              .min_p = min_p,
                              .seed = params.size(),
                              .position = 77,
                              .top_count = params.size() % 2 == 0 ? 20 : 0});
          }
        }
      }
      std::vector<float> logits;
      for (size_t i = 0; i < params.size(); ++i) {
        logits.insert(logits.end(), row.begin(), row.end());
      }
      const auto sampled = Sample(logits, vocab, params);
      for (size_t i = 0; i < params.size(); ++i) {
        const SampledToken expected = cpu::SampleToken(row.data(), vocab, params[i], scratch);
        EXPECT_EQ(sampled[i].token_id, expected.token_id)
            << "vocab " << vocab << " scale " << scale << " row " << i;
        ASSERT_EQ(sampled[i].top.size(), expected.top.size());
        for (size_t j = 0; j < expected.top.size(); ++j) {
          EXPECT_EQ(sampled[i].top[j].token_id, expected.top[j].token_id) << vocab << " row " << i;
        }
      }
    }
  }
}

TEST_F(SamplingTest, EditsAndMinPAgreeWithTheCpuBackendAndLeaveTheLogits) {
  cpu::SampleScratch scratch;
  for (const int32_t vocab : {5, 1001, 49152}) {
    std::vector<std::vector<LogitEdit>> edits;
    std::vector<SampleRow> params;
    for (const float temperature : {0.0f, 0.7f, 2.0f}) {
      for (const float min_p : {0.0f, 0.02f, 0.5f, 1.0f}) {
        for (const int32_t count : {0, 1, 3000}) {
          edits.push_back(RandomEdits(7 + edits.size(), vocab, count));
          params.push_back({.temperature = temperature,
                            .top_k = edits.size() % 3 == 0 ? 40 : 0,
                            .top_p = edits.size() % 4 == 0 ? 0.9f : 1.0f,
                            .min_p = min_p,
                            .seed = edits.size(),
                            .position = 9});
        }
      }
    }
    for (size_t i = 0; i < params.size(); ++i) params[i].edits = edits[i];
    const auto logits = RandomLogits(6, static_cast<int64_t>(params.size()) * vocab, 3.0f);
    const auto device = Upload(*ops_, logits);
    std::vector<SampledToken> sampled(params.size());
    ops_->Sample(static_cast<const float*>(device->data()), vocab, params, sampled);
    std::vector<float> after(logits.size());
    ops_->CopyToHost(after.data(), device->data(), after.size() * sizeof(float));
    EXPECT_EQ(CountDifferent(std::span<const float>(logits), std::span<const float>(after)), 0u);
    for (size_t i = 0; i < params.size(); ++i) {
      const float* row = logits.data() + i * static_cast<size_t>(vocab);
      const SampledToken expected = cpu::SampleToken(row, vocab, params[i], scratch);
      EXPECT_EQ(sampled[i].token_id, expected.token_id) << "vocab " << vocab << " row " << i;
      EXPECT_NEAR(sampled[i].logprob,
                  ReferenceLogprob({row, static_cast<size_t>(vocab)}, sampled[i].token_id), 4e-6);
      const std::vector<float> own(row, row + vocab);
      const SampledToken alone = SampleOne(own, params[i]);
      EXPECT_EQ(alone.token_id, sampled[i].token_id);
      EXPECT_EQ(CountDifferent(std::span(&alone.logprob, 1), std::span(&sampled[i].logprob, 1)),
                0u);
    }
  }
}

// Small enough for compute-sanitizer: three slices, edits, alternatives and every filter.
TEST_F(SamplingTest, AFewSlicesWithEverythingAgreeWithTheCpuBackend) {
  constexpr int32_t kVocab = 2050;
  const std::vector<LogitEdit> edits = RandomEdits(3, kVocab, 20);
  std::vector<SampleRow> params = {{},
                                   {.temperature = 0.7f},
                                   {.temperature = 0.7f, .top_k = 5},
                                   {.temperature = 1.5f, .top_p = 0.9f},
                                   {.temperature = 1.0f, .min_p = 0.1f}};
  for (SampleRow& row : params) {
    row.edits = edits;
    row.top_count = 3;
  }
  const auto logits = RandomLogits(8, static_cast<int64_t>(params.size()) * kVocab, 2.0f);
  const auto sampled = Sample(logits, kVocab, params);
  cpu::SampleScratch scratch;
  for (size_t i = 0; i < params.size(); ++i) {
    const SampledToken expected =
        cpu::SampleToken(logits.data() + i * kVocab, kVocab, params[i], scratch);
    EXPECT_EQ(sampled[i].token_id, expected.token_id) << "row " << i;
    ASSERT_EQ(sampled[i].top.size(), expected.top.size());
    for (size_t k = 0; k < expected.top.size(); ++k) {
      EXPECT_EQ(sampled[i].top[k].token_id, expected.top[k].token_id);
    }
  }
}

TEST_F(SamplingTest, ARowsResultDoesNotDependOnItsNeighbours) {
  const int32_t vocab = 49152;
  const auto logits = RandomLogits(4, int64_t{3} * vocab, 2.0f);
  const std::vector<SampleRow> params = {
      {}, {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 9}, {.temperature = 1.0f}};
  const auto together = Sample(logits, vocab, params);
  for (size_t i = 0; i < params.size(); ++i) {
    const std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab,
                                 logits.begin() + static_cast<std::ptrdiff_t>(i + 1) * vocab);
    const SampledToken alone = SampleOne(row, params[i]);
    EXPECT_EQ(alone.token_id, together[i].token_id);
    EXPECT_EQ(CountDifferent(std::span(&alone.logprob, 1), std::span(&together[i].logprob, 1)), 0u);
  }
}

TEST_F(SamplingTest, TopLogprobsAreThoseOfTheCpuBackend) {
  cpu::SampleScratch scratch;
  for (const int32_t vocab : {1, 7, 1001, 49152, 151936}) {
    std::vector<SampleRow> params;
    for (const int32_t count : {0, 1, 5, 20, 0, 20}) {
      params.push_back({.temperature = 1.0f, .top_k = 3, .seed = 5, .top_count = count});
    }
    params[1].given_token = vocab - 1;
    // A coarse grid, so that there are many ties.
    auto logits = RandomLogits(5, static_cast<int64_t>(params.size()) * vocab, 3.0f);
    for (float& logit : logits) logit = std::round(logit * 4.0f) / 4.0f;
    std::fill_n(logits.end() - vocab, vocab, -kInfinity);
    const auto sampled = Sample(logits, vocab, params);
    for (size_t i = 0; i < params.size(); ++i) {
      const float* row = logits.data() + i * static_cast<size_t>(vocab);
      const SampledToken expected = cpu::SampleToken(row, vocab, params[i], scratch);
      EXPECT_EQ(sampled[i].token_id, expected.token_id) << vocab << " row " << i;
      ASSERT_EQ(sampled[i].top.size(), expected.top.size()) << vocab << " row " << i;
      for (size_t j = 0; j < expected.top.size(); ++j) {
        EXPECT_EQ(sampled[i].top[j].token_id, expected.top[j].token_id) << vocab << " row " << i;
        if (i + 1 < params.size()) {
          EXPECT_NEAR(sampled[i].top[j].logprob, expected.top[j].logprob, 4e-6);
        } else {
          EXPECT_EQ(sampled[i].top[j].logprob, -kInfinity);
        }
        if (sampled[i].top[j].token_id == sampled[i].token_id) {
          EXPECT_EQ(sampled[i].top[j].logprob, sampled[i].logprob);
        }
      }
    }
  }
}

}  // namespace
}  // namespace selfsame::testing
