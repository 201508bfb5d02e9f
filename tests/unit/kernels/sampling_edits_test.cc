// Logit edits and min-p: what they change, and that they change nothing else.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "kernels/cpu/sampling.h"
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
  auto ops = testing::MakeOps(Schedule::kCanonical, 1);
  SampledToken token;
  ops->Sample(logits.data(), static_cast<int32_t>(logits.size()), {&row, 1}, {&token, 1});
  return token;
}

// Every kind of edit, of tokens spread over the vocabulary.
std::vector<LogitEdit> RandomEdits(int32_t vocab, int count, uint64_t seed) {
  testing::Random random(seed);
  std::map<int32_t, LogitEdit> edits;
  for (int i = 0; i < count; ++i) {
    const int32_t id = random.Below(vocab);
    LogitEdit edit{.token_id = id};
    if (i % 2 == 0) edit.repetition = 1.0f + 0.5f * (random.Symmetric() + 1.0f);
    if (i % 3 == 0) edit.penalty = random.Symmetric() * 4.0f;
    if (i % 4 == 0) edit.bias = random.Symmetric() * 6.0f;
    if (i % 7 == 0) edit.bias = -kInfinity;
    edits[id] = edit;
  }
  std::vector<LogitEdit> list;
  for (const auto& [id, edit] : edits) list.push_back(edit);
  std::reverse(list.begin(), list.end());
  return list;
}

// The definition in double.
std::vector<double> EditedInDouble(const std::vector<float>& logits,
                                   const std::vector<LogitEdit>& edits) {
  std::vector<double> edited(logits.begin(), logits.end());
  for (const LogitEdit& edit : edits) {
    double x = edited[edit.token_id] + double{edit.bias};
    x = x > 0.0 ? x / double{edit.repetition} : x * double{edit.repetition};
    edited[edit.token_id] = x - double{edit.penalty};
  }
  return edited;
}

double LogprobInDouble(const std::vector<float>& logits, int32_t token) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit});
  return logits[token] - std::log(sum);
}

TEST(LogitEditTest, ARowChoosesFromItsEditedLogits) {
  for (const int32_t vocab : {1, 7, 64, 1025, 5000}) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const auto logits = RandomLogits(vocab, seed, 6.0f);
      auto edits = RandomEdits(vocab, 1 + static_cast<int>(seed) * 7, seed + 100);
      // So that it is not simply the raw best.
      const auto best =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      std::erase_if(edits, [&](const LogitEdit& edit) { return edit.token_id == best; });
      edits.push_back({.token_id = best, .repetition = 1.5f, .penalty = 2.0f});
      const auto edited = EditedInDouble(logits, edits);
      const auto expected = std::max_element(edited.begin(), edited.end()) - edited.begin();
      const SampledToken token = SampleOne(logits, {.edits = edits});
      ASSERT_EQ(token.token_id, expected) << "vocab " << vocab << " seed " << seed;
      EXPECT_NEAR(token.logprob, LogprobInDouble(logits, token.token_id), 4e-6);
    }
  }
}

TEST(LogitEditTest, ASampledRowIsThatOfTheSameLogitsWrittenOut) {
  const int32_t vocab = 3001;
  const std::vector<SampleRow> settings = {
      {.temperature = 1.0f},
      {.temperature = 1.5f, .top_k = 40},
      {.temperature = 0.8f, .top_p = 0.9f},
      {.temperature = 2.0f, .top_k = 500, .top_p = 0.97f, .min_p = 0.01f}};
  int differing = 0;
  for (SampleRow row : settings) {
    for (int32_t position = 0; position < 60; ++position) {
      const auto logits = RandomLogits(vocab, 5 + position, 6.0f);
      const auto edits = RandomEdits(vocab, 200, 17 + position);
      row.position = position;
      row.seed = 99;
      row.edits = {};
      const int32_t raw = SampleOne(logits, row).token_id;
      auto written = logits;
      for (const LogitEdit& edit : edits) {
        float x = written[edit.token_id] + edit.bias;
        x = x > 0.0f ? x / edit.repetition : x * edit.repetition;
        written[edit.token_id] = x - edit.penalty;
      }
      const int32_t expected = SampleOne(written, row).token_id;
      row.edits = edits;
      const SampledToken token = SampleOne(logits, row);
      ASSERT_EQ(token.token_id, expected) << position;
      EXPECT_NEAR(token.logprob, LogprobInDouble(logits, expected), 4e-6);
      differing += raw != expected ? 1 : 0;
    }
  }
  EXPECT_GT(differing, 10);
}

TEST(LogitEditTest, EditsThatChangeNothingLeaveTheBits) {
  const auto logits = RandomLogits(2000, 3, 5.0f);
  std::vector<LogitEdit> edits;
  for (int32_t id = 0; id < 2000; id += 3) edits.push_back({.token_id = id});
  for (SampleRow row : {SampleRow{}, SampleRow{.temperature = 0.9f, .top_p = 0.8f, .seed = 4}}) {
    for (row.position = 0; row.position < 20; ++row.position) {
      row.edits = {};
      const SampledToken plain = SampleOne(logits, row);
      row.edits = edits;
      const SampledToken edited = SampleOne(logits, row);
      EXPECT_EQ(edited.token_id, plain.token_id);
      EXPECT_EQ(edited.logprob, plain.logprob);
    }
  }
}

TEST(LogitEditTest, ABannedTokenIsNeverChosen) {
  const std::vector<float> logits = {9.0f, 1.0f, 0.5f, 8.0f};
  const std::vector<LogitEdit> bans = {{.token_id = 0, .bias = -kInfinity},
                                       {.token_id = 3, .bias = -kInfinity, .repetition = 0.5f}};
  EXPECT_EQ(SampleOne(logits, {.edits = bans}).token_id, 1);
  for (int32_t position = 0; position < 200; ++position) {
    const SampleRow row = {.temperature = 50.0f, .position = position, .edits = bans};
    const int32_t token = SampleOne(logits, row).token_id;
    EXPECT_TRUE(token == 1 || token == 2) << token;
  }
  std::vector<LogitEdit> all;
  for (int32_t id = 0; id < 4; ++id) all.push_back({.token_id = id, .bias = -kInfinity});
  for (const float temperature : {0.0f, 1.0f}) {
    const SampledToken token = SampleOne(logits, {.temperature = temperature, .edits = all});
    EXPECT_EQ(token.token_id, 0);
    EXPECT_NEAR(token.logprob, LogprobInDouble(logits, 0), 4e-6);
  }
}

TEST(LogitEditTest, NonFiniteLogitsAndExtremeEditsAreHarmless) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<LogitEdit> edits = {{.token_id = 0, .bias = 100.0f, .repetition = 1e-30f},
                                        {.token_id = 1, .repetition = 1e-40f},
                                        {.token_id = 2, .bias = 1.0f, .repetition = 1e-30f}};
  EXPECT_EQ(SampleOne({nan, -kInfinity, 3.0f, 2.0f}, {.edits = edits}).token_id, 2);
  const std::vector<LogitEdit> away = {{.token_id = 2, .penalty = kInfinity}};
  EXPECT_EQ(SampleOne({nan, -kInfinity, 3.0f, 2.0f}, {.edits = away}).token_id, 3);
}

// What is left of a vocabulary, found out by many draws at every position.
std::vector<bool> Drawn(const std::vector<float>& logits, SampleRow row) {
  std::vector<bool> seen(logits.size(), false);
  for (row.position = 0; row.position < 600; ++row.position) {
    seen[SampleOne(logits, row).token_id] = true;
  }
  return seen;
}

TEST(MinPTest, KeepsTokensOfAtLeastThatShareOfTheBest) {
  // At temperature 1 the probabilities are to each other as 1, 1/2, 1/4, 1/8.
  const std::vector<float> logits = {std::log(0.25f), 0.0f, std::log(0.125f), std::log(0.5f)};
  using Seen = std::vector<bool>;
  EXPECT_EQ(Drawn(logits, {.temperature = 1.0f, .min_p = 1.0f}), (Seen{false, true, false, false}));
  EXPECT_EQ(Drawn(logits, {.temperature = 1.0f, .min_p = 0.51f}),
            (Seen{false, true, false, false}));
  EXPECT_EQ(Drawn(logits, {.temperature = 1.0f, .min_p = 0.49f}), (Seen{false, true, false, true}));
  EXPECT_EQ(Drawn(logits, {.temperature = 1.0f, .min_p = 0.2f}), (Seen{true, true, false, true}));
  EXPECT_EQ(Drawn(logits, {.temperature = 1.0f, .min_p = 0.1f}), (Seen{true, true, true, true}));
  // The temperature comes first: at 2 the shares are roots of those at 1.
  EXPECT_EQ(Drawn(logits, {.temperature = 2.0f, .min_p = 0.49f}), (Seen{true, true, false, true}));
  // Top-p counts the mass of what min-p left: 1 / (1 + 1/2) is not 0.66 but 0.67.
  EXPECT_EQ(Drawn(logits, {.temperature = 1.0f, .top_p = 0.66f, .min_p = 0.4f}),
            (Seen{false, true, false, false}));
  EXPECT_EQ(Drawn(logits, {.temperature = 1.0f, .top_p = 0.66f}), (Seen{false, true, false, true}));
}

TEST(MinPTest, MeetsTopKAndTopPAsTheDefinitionSays) {
  const std::vector<SampleRow> settings = {
      {.temperature = 1.0f, .min_p = 0.05f},
      {.temperature = 2.0f, .min_p = 0.3f},
      {.temperature = 1.0f, .top_k = 20, .min_p = 0.01f},
      {.temperature = 1.0f, .top_k = 5, .min_p = 0.001f},
      {.temperature = 1.5f, .top_p = 0.9f, .min_p = 0.02f},
      {.temperature = 1.5f, .top_k = 30, .top_p = 0.8f, .min_p = 0.02f},
      {.temperature = 0.7f, .top_p = 0.99f, .min_p = 1e-7f},
      {.temperature = 1.0f, .min_p = 1e-40f}};
  for (const int32_t vocab : {1, 65, 3001}) {
    const auto logits = RandomLogits(vocab, 40 + vocab, 6.0f);
    const float max = *std::max_element(logits.begin(), logits.end());
    std::vector<int32_t> ids(vocab);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    for (SampleRow row : settings) {
      const auto weight = [&](int32_t id) {
        return std::exp((double{logits[id]} - max) / row.temperature);
      };
      std::vector<int32_t> kept = ids;
      std::erase_if(kept, [&](int32_t id) { return weight(id) < double{row.min_p}; });
      if (row.top_k > 0) kept.resize(std::min<size_t>(kept.size(), row.top_k));
      double total = 0.0;
      for (const int32_t id : kept) total += weight(id);
      double mass = 0.0;
      size_t count = 0;
      while (count < kept.size() && (count == 0 || mass < row.top_p * total)) {
        mass += weight(kept[count++]);
      }
      if (row.top_p < 1.0f) kept.resize(count);
      for (row.position = 0; row.position < 40; ++row.position) {
        const cpu::NoiseKey key = {0, static_cast<uint32_t>(row.position), 0};
        const auto value = [&](int32_t id) {
          return (logits[id] - max) / row.temperature + cpu::GumbelNoise(id, key);
        };
        const int32_t expected = *std::max_element(
            kept.begin(), kept.end(), [&](int32_t a, int32_t b) { return value(a) < value(b); });
        for (const int64_t target : testing::UsableTargets()) {
          const testing::ForcedTarget forced(target);
          ASSERT_EQ(SampleOne(logits, row).token_id, expected)
              << "vocab " << vocab << " min_p " << row.min_p << " top_k " << row.top_k << " top_p "
              << row.top_p << " position " << row.position;
        }
      }
    }
  }
}

// What orders, gathers or copies leaves traces in the working memory.
TEST(SamplingNeighboursTest, ARowDoesNoWorkThatItDidNotAskFor) {
  const int32_t vocab = 3000;
  const auto logits = RandomLogits(vocab, 9, 5.0f);
  const auto edits = RandomEdits(vocab, 100, 3);
  cpu::SampleScratch scratch;
  const std::vector<SampleRow> plain = {
      {}, {.temperature = 1.0f, .seed = 3}, {.temperature = 1.0f, .min_p = 0.1f, .seed = 3}};
  for (const SampleRow& row : plain) cpu::SampleToken(logits.data(), vocab, row, scratch);
  EXPECT_EQ(scratch.candidates.capacity(), 0u);
  EXPECT_EQ(scratch.edited.capacity(), 0u);
  cpu::SampleToken(logits.data(), vocab, {.edits = edits}, scratch);
  EXPECT_EQ(scratch.candidates.capacity(), 0u);
  EXPECT_EQ(scratch.edited.size(), static_cast<size_t>(vocab));
  cpu::SampleToken(logits.data(), vocab, {.temperature = 1.0f, .top_p = 0.9f}, scratch);
  EXPECT_GT(scratch.candidates.capacity(), 0u);
}

TEST(SamplingNeighboursTest, ARowsBitsAreItsOwnWhateverItsNeighboursAskFor) {
  const int32_t vocab = 1501;
  const auto edits = RandomEdits(vocab, 300, 1);
  const auto other_edits = RandomEdits(vocab, 500, 2);
  const std::vector<SampleRow> rows = {
      {},
      {.edits = edits},
      {.temperature = 0.8f, .top_k = 30, .seed = 5},
      {.temperature = 1.3f, .min_p = 0.1f, .seed = 6, .edits = other_edits},
      {},
      {.temperature = 1.0f, .top_p = 0.9f, .min_p = 0.02f, .seed = 7},
      {.temperature = 1.0f, .seed = 8, .edits = edits}};
  std::vector<float> logits;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto own = RandomLogits(vocab, 60 + i, 5.0f);
    logits.insert(logits.end(), own.begin(), own.end());
  }
  const std::vector<float> before = logits;
  for (const int threads : {1, 3}) {
    auto ops = testing::MakeOps(Schedule::kCanonical, threads);
    std::vector<SampledToken> together(rows.size());
    ops->Sample(logits.data(), vocab, rows, together);
    EXPECT_EQ(logits, before);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> own(logits.begin() + i * vocab, logits.begin() + (i + 1) * vocab);
      const SampledToken alone = SampleOne(own, rows[i]);
      EXPECT_EQ(together[i].token_id, alone.token_id) << i;
      EXPECT_EQ(together[i].logprob, alone.logprob) << i;
    }
  }
}

}  // namespace
}  // namespace selfsame
