#include "common/sampling/logit_editor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/naive_edits.h"

namespace selfsame {
namespace {

using testing::NaiveEdits;
using testing::SortedEdits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<int32_t> kPrompt = {5, 6, 5, 7};
const std::vector<int32_t> kStops = {0, 2};

TEST(LogitEditorTest, NeutralRulesGiveNoEdits) {
  LogitEditor editor({}, kPrompt, kStops);
  EXPECT_TRUE(editor.edits().empty());
  editor.Append(5);
  editor.Append(2);
  EXPECT_TRUE(editor.edits().empty());
}

TEST(LogitEditorTest, RepetitionIsOfPromptAndOutputTheOthersOfTheOutputOnly) {
  LogitEditor editor(
      {.repetition_penalty = 1.5f, .presence_penalty = 0.5f, .frequency_penalty = 0.25f}, kPrompt,
      kStops);
  using Edits = std::vector<LogitEdit>;
  EXPECT_EQ(SortedEdits(editor.edits()), (Edits{{.token_id = 5, .repetition = 1.5f},
                                                {.token_id = 6, .repetition = 1.5f},
                                                {.token_id = 7, .repetition = 1.5f}}));
  editor.Append(6);
  editor.Append(9);
  editor.Append(6);
  EXPECT_EQ(SortedEdits(editor.edits()),
            (Edits{{.token_id = 5, .repetition = 1.5f},
                   {.token_id = 6, .repetition = 1.5f, .penalty = 1.0f},
                   {.token_id = 7, .repetition = 1.5f},
                   {.token_id = 9, .repetition = 1.5f, .penalty = 0.75f}}));
}

TEST(LogitEditorTest, StopTokensAreBannedUntilMinTokens) {
  LogitEditor editor({.logit_bias = {{2, 3.0f}}, .min_tokens = 2}, kPrompt, kStops);
  using Edits = std::vector<LogitEdit>;
  const Edits banned = {{.token_id = 0, .bias = -kInfinity}, {.token_id = 2, .bias = -kInfinity}};
  const Edits free = {{.token_id = 2, .bias = 3.0f}};
  EXPECT_EQ(SortedEdits(editor.edits()), banned);
  editor.Append(8);
  EXPECT_EQ(SortedEdits(editor.edits()), banned);
  editor.Append(8);
  EXPECT_EQ(SortedEdits(editor.edits()), free);
  editor.Append(2);
  EXPECT_EQ(SortedEdits(editor.edits()), free);
  editor.Truncate(1);
  EXPECT_EQ(SortedEdits(editor.edits()), banned);
}

TEST(LogitEditorTest, EditsVanishWithTheTokensThatMadeThem) {
  LogitEditor editor({.presence_penalty = 1.0f}, kPrompt, kStops);
  for (const int32_t token_id : {5, 9, 5, 11}) editor.Append(token_id);
  EXPECT_EQ(editor.edits().size(), 3u);
  editor.Truncate(1);
  EXPECT_EQ(editor.output_count(), 1);
  EXPECT_EQ(SortedEdits(editor.edits()),
            (std::vector<LogitEdit>{{.token_id = 5, .penalty = 1.0f}}));
  editor.Truncate(7);
  EXPECT_EQ(editor.output_count(), 1);
  editor.Truncate(0);
  EXPECT_TRUE(editor.edits().empty());
}

// Opposite penalties can meet at zero.
TEST(LogitEditorTest, APenaltyOfZeroIsNoEdit) {
  LogitEditor editor({.presence_penalty = -1.0f, .frequency_penalty = 0.5f}, kPrompt, kStops);
  editor.Append(4);
  EXPECT_EQ(editor.edits().size(), 1u);
  editor.Append(4);
  EXPECT_TRUE(editor.edits().empty());
  editor.Append(4);
  EXPECT_EQ(editor.edits().size(), 1u);
}

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 2 + 1) {}
  int32_t Below(int32_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state_ >> 33) % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

LogitRules RandomRules(Numbers& numbers) {
  LogitRules rules;
  if (numbers.Below(2) == 0) rules.repetition_penalty = 0.5f + 0.125f * numbers.Below(10);
  if (numbers.Below(2) == 0) rules.presence_penalty = -2.0f + 0.3f * numbers.Below(14);
  if (numbers.Below(2) == 0) rules.frequency_penalty = -2.0f + 0.3f * numbers.Below(14);
  if (numbers.Below(2) == 0) rules.min_tokens = numbers.Below(20);
  for (int32_t id = 0; id < 24; ++id) {
    if (numbers.Below(6) == 0) rules.logit_bias.push_back({id, -5.0f + numbers.Below(10)});
  }
  return rules;
}

TEST(LogitEditorTest, HoldsWhatANaiveCountGivesWhateverWasRolledBack) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Numbers numbers(seed);
    const LogitRules rules = RandomRules(numbers);
    std::vector<int32_t> prompt(static_cast<size_t>(1 + numbers.Below(12)));
    for (int32_t& token_id : prompt) token_id = numbers.Below(24);
    LogitEditor editor(rules, prompt, kStops);
    std::vector<int32_t> output;
    for (int step = 0; step < 80; ++step) {
      if (numbers.Below(4) == 0) {
        output.resize(static_cast<size_t>(numbers.Below(static_cast<int32_t>(output.size()) + 1)));
        editor.Truncate(static_cast<int32_t>(output.size()));
      } else {
        output.push_back(numbers.Below(24));
        editor.Append(output.back());
      }
      ASSERT_EQ(SortedEdits(editor.edits()), NaiveEdits(rules, prompt, output, kStops))
          << "seed " << seed << " step " << step;
    }
    const LogitEditor snapshot = editor;
    editor.Append(1);
    ASSERT_EQ(SortedEdits(snapshot.edits()), NaiveEdits(rules, prompt, output, kStops));
  }
}

}  // namespace
}  // namespace selfsame
