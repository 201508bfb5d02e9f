#include "kernels/cpu/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/philox.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace selfsame {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(int32_t vocab, uint64_t seed, float scale) {
  testing::Random random(seed);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = random.Symmetric() * scale;
  return logits;
}

SampledToken SampleOne(const std::vector<float>& logits, const SampleRow& row) {
  auto ops = testing::MakeOps(Schedule::kFast, 1);
  SampledToken token;
  ops->Sample(logits.data(), static_cast<int32_t>(logits.size()), {&row, 1}, {&token, 1});
  return token;
}

// Ids that top-k and top-p leave, by sorting everything and adding in double.
std::vector<int32_t> KeptTokens(const std::vector<float>& logits, const SampleRow& row) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  if (row.top_k > 0 && row.top_k < static_cast<int32_t>(ids.size())) ids.resize(row.top_k);
  if (row.top_p >= 1.0f) return ids;
  const double max = logits[ids[0]];
  double total = 0.0;
  for (const int32_t id : ids) total += std::exp((logits[id] - max) / row.temperature);
  double mass = 0.0;
  size_t count = 0;
  while (count < ids.size() && (count == 0 || mass < row.top_p * total)) {
    mass += std::exp((logits[ids[count++]] - max) / row.temperature);
  }
  ids.resize(count);
  return ids;
}

// The definition in scalar code over the kept tokens.
int32_t ReferenceChoice(const std::vector<float>& logits, const SampleRow& row) {
  const auto kept = KeptTokens(logits, row);
  const cpu::NoiseKey key = {row.seed, static_cast<uint32_t>(row.position),
                             static_cast<uint32_t>(row.choice_index)};
  const float max = *std::max_element(logits.begin(), logits.end());
  float best = -kInfinity;
  int32_t best_id = -1;
  for (const int32_t id : kept) {
    const float value = (logits[id] - max) / row.temperature + cpu::GumbelNoise(id, key);
    if (value > best || (value == best && id < best_id)) {
      best = value;
      best_id = id;
    }
  }
  return best_id;
}

TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(cpu::Philox({0, 0, 0, 0}, 0, 0),
            (cpu::PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(cpu::Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (cpu::PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(cpu::Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (cpu::PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplingTest, GreedyTakesTheLargestLogitAndTheLowestIdOfATie) {
  for (const int32_t vocab : {1, 5, 16, 97, 1024, 49152}) {
    auto logits = RandomLogits(vocab, 1, 5.0f);
    const int32_t first = vocab / 2;
    logits[first] = 9.0f;
    logits[vocab - 1] = 9.0f;
    for (const int64_t target : testing::UsableTargets()) {
      const testing::ForcedTarget forced(target);
      EXPECT_EQ(SampleOne(logits, {}).token_id, first) << vocab;
    }
  }
}

TEST(SamplingTest, LogprobIsTheLogSoftmaxOfRawLogits) {
  for (const int32_t vocab : {1, 33, 1024, 1025, 5000}) {
    const auto logits = RandomLogits(vocab, 2, 8.0f);
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(double{logit});
    const std::vector<SampleRow> rows = {{}, {.temperature = 2.5f, .top_k = 40, .seed = 5}};
    for (const SampleRow& row : rows) {
      const SampledToken token = SampleOne(logits, row);
      EXPECT_NEAR(token.logprob, logits[token.token_id] - std::log(sum), 4e-6) << vocab;
    }
  }
}

TEST(SamplingTest, ChoicesEqualTheScalarDefinitionOnEveryTarget) {
  const std::vector<SampleRow> settings = {{.temperature = 1.0f},
                                           {.temperature = 0.7f, .top_k = 1},
                                           {.temperature = 1.5f, .top_k = 40},
                                           {.temperature = 0.8f, .top_p = 0.9f},
                                           {.temperature = 5.0f, .top_p = 0.5f},
                                           {.temperature = 1.2f, .top_k = 50, .top_p = 0.95f},
                                           {.temperature = 1.0f, .top_p = 1e-6f},
                                           {.temperature = 1e-4f},
                                           {.temperature = 100.0f, .top_k = 700, .top_p = 0.99f}};
  for (const int32_t vocab : {1, 13, 64, 65, 3001}) {
    const auto logits = RandomLogits(vocab, 3 + vocab, 6.0f);
    for (SampleRow row : settings) {
      for (int32_t position = 0; position < 40; ++position) {
        row.position = position;
        row.seed = 0x123456789abcdef0u + position % 3;
        row.choice_index = position % 2;
        const int32_t expected = ReferenceChoice(logits, row);
        for (const int64_t target : testing::UsableTargets()) {
          const testing::ForcedTarget forced(target);
          ASSERT_EQ(SampleOne(logits, row).token_id, expected)
              << "vocab " << vocab << " temperature " << row.temperature << " top_k " << row.top_k
              << " top_p " << row.top_p << " position " << position;
        }
      }
    }
  }
}

TEST(SamplingTest, TopKKeepsTheLowestIdsOfATie) {
  std::vector<float> logits(200, 1.0f);
  logits[150] = 2.0f;
  std::vector<int> counts(200, 0);
  for (int32_t position = 0; position < 400; ++position) {
    ++counts[SampleOne(logits, {.temperature = 10.0f, .top_k = 4, .position = position}).token_id];
  }
  for (int32_t id = 0; id < 200; ++id) {
    EXPECT_EQ(counts[id] > 0, id < 3 || id == 150) << id;
  }
}

TEST(SamplingTest, TopPStopsAtTheTokenThatReachesTheMass) {
  // Probabilities 1/2, 1/4, 1/8, 1/8 (exact in the fixed-point masses up to rounding of exp).
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f),
                                     std::log(0.125f)};
  const auto kept = [&](float top_p) {
    std::vector<bool> seen(4, false);
    for (int32_t position = 0; position < 300; ++position) {
      const SampleRow row = {.temperature = 1.0f, .top_p = top_p, .position = position};
      seen[SampleOne(logits, row).token_id] = true;
    }
    return seen;
  };
  EXPECT_EQ(kept(0.01f), (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(kept(0.49f), (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(kept(0.51f), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(kept(0.80f), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(kept(0.90f), (std::vector<bool>{true, true, true, true}));
}

TEST(SamplingTest, ARowDoesNotDependOnItsNeighbours) {
  const int32_t vocab = 1000;
  std::vector<SampleRow> rows;
  std::vector<float> logits;
  for (int32_t i = 0; i < 6; ++i) {
    SampleRow row = {.temperature = i % 3 == 0 ? 0.0f : 0.9f, .position = 7};
    row.seed = i;
    row.top_k = i % 2 == 0 ? 20 : 0;
    row.top_p = i == 5 ? 0.8f : 1.0f;
    rows.push_back(row);
    const auto values = RandomLogits(vocab, 50 + i, 4.0f);
    logits.insert(logits.end(), values.begin(), values.end());
  }
  for (const int threads : {1, 2, 3}) {
    auto ops = testing::MakeOps(Schedule::kCanonical, threads);
    std::vector<SampledToken> out(rows.size());
    ops->Sample(logits.data(), vocab, rows, out);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> own(logits.begin() + i * vocab, logits.begin() + (i + 1) * vocab);
      const SampledToken alone = SampleOne(own, rows[i]);
      EXPECT_EQ(out[i].token_id, alone.token_id);
      EXPECT_EQ(out[i].logprob, alone.logprob);
    }
  }
}

TEST(SamplingTest, SeedPositionAndChoiceEachChangeTheNoise) {
  const std::vector<float> logits(4096, 0.0f);
  const SampleRow base = {.temperature = 1.0f, .seed = 1, .choice_index = 0, .position = 5};
  SampleRow seed = base, high_seed = base, choice = base, position = base;
  seed.seed = 2;
  high_seed.seed = 1 + (uint64_t{1} << 40);
  choice.choice_index = 1;
  position.position = 6;
  const int32_t token = SampleOne(logits, base).token_id;
  EXPECT_EQ(SampleOne(logits, base).token_id, token);
  for (const SampleRow& other : {seed, high_seed, choice, position}) {
    EXPECT_NE(SampleOne(logits, other).token_id, token);
  }
}

TEST(SamplingTest, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, 0.5f, -1.0f, 1.5f, -0.5f, 0.25f};
  const float temperature = 0.8f;
  double total = 0.0;
  for (const float logit : logits) total += std::exp(logit / temperature);
  constexpr int32_t kDraws = 20000;
  std::vector<int> counts(logits.size(), 0);
  cpu::SampleScratch scratch;
  for (int32_t position = 0; position < kDraws; ++position) {
    const SampleRow row = {.temperature = temperature, .seed = 77, .position = position};
    ++counts[cpu::SampleToken(logits.data(), 8, row, scratch).token_id];
  }
  double chi_square = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = kDraws * std::exp(logits[i] / temperature) / total;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  // 7 degrees of freedom: 24.3 is exceeded once in a thousand seeds.
  EXPECT_LT(chi_square, 24.3);
}

TEST(SamplingTest, NonFiniteLogitsAreHarmless) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const SampleRow seeded = {.temperature = 1.0f, .top_k = 2, .top_p = 0.9f, .seed = 3};
  for (const SampleRow& row : {SampleRow(), seeded}) {
    const SampledToken nothing = SampleOne({nan, -kInfinity, nan}, row);
    EXPECT_EQ(nothing.token_id, 0);
    EXPECT_EQ(nothing.logprob, -kInfinity);
    EXPECT_EQ(SampleOne({nan, 1.0f, -kInfinity, nan}, row).token_id, 1);
    EXPECT_EQ(SampleOne({nan, 1.0f, kInfinity, 2.0f}, row).token_id, 2);
  }
  std::vector<float> logits(100, nan);
  logits[99] = 0.5f;
  EXPECT_EQ(SampleOne(logits, seeded).token_id, 99);
  EXPECT_EQ(SampleOne(logits, {}).token_id, 99);
}

}  // namespace
}  // namespace selfsame
