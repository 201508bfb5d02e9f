#include "gtest/gtest.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {
namespace {

constexpr int32_t kMaxRows = 1024;
constexpr double kBound = 6e-3;

// Groups of 3, 4, 2, 1, 8, 7, 16 (one row fills what is small), 48 (a row may lie in both
// warpgroups) and 64 heads, and both head dimensions.
const AttentionShape kShapes[] = {
    {.head_count = 9, .kv_head_count = 3, .head_dim = 64},
    {.head_count = 32, .kv_head_count = 8, .head_dim = 128},
    {.head_count = 16, .kv_head_count = 8, .head_dim = 128},
    {.head_count = 4, .kv_head_count = 4, .head_dim = 64},
    {.head_count = 8, .kv_head_count = 1, .head_dim = 128},
    {.head_count = 14, .kv_head_count = 2, .head_dim = 128},
    {.head_count = 16, .kv_head_count = 1, .head_dim = 64},
    {.head_count = 48, .kv_head_count = 1, .head_dim = 64},
    {.head_count = 64, .kv_head_count = 1, .head_dim = 128},
};

std::unique_ptr<Ops> MakeOps(Schedule schedule, bool use_warpgroups = true) {
  return MakeCudaOps(
      {.schedule = schedule, .max_rows = kMaxRows, .use_warpgroups = use_warpgroups});
}

std::span<const BFloat16> RowOf(const std::vector<BFloat16>& output, const AttentionShape& shape,
                                int32_t row) {
  const auto width = static_cast<size_t>(shape.output_width());
  return std::span(output).subspan(static_cast<size_t>(row) * width, width);
}

class AttentionReferenceTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Products, AttentionReferenceTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Warpgroups" : "Warps"; });

TEST_P(AttentionReferenceTest, BothSchedulesMatchADoubleReference) {
  for (const Schedule schedule : {Schedule::kFast, Schedule::kCanonical}) {
    const auto ops = MakeOps(schedule, GetParam());
    for (const AttentionShape& shape : kShapes) {
      // Decode rows, a window and a prefill chunk, at the edges of blocks, tiles and splits.
      const std::vector<CaseSequence> sequences = {
          {1, 0, 1},      {2, 15, 1},   {3, 16, 1},  {4, 63, 2},   {5, 64, 1},
          {6, 510, 3, 2}, {7, 1023, 1}, {8, 40, 90}, {9, 500, 30}, {10, 0, 17, 1}};
      const CaseResult result = RunAttentionCase(*ops, shape, sequences, 3);
      for (size_t i = 0; i < sequences.size(); ++i) {
        const CaseSequence& sequence = sequences[i];
        for (int32_t row = 0; row<sequence.row_count; row += sequence.row_count> 20 ? 13 : 1) {
          const auto reference =
              ReferenceAttention(shape, sequence.seed, sequence.first_position + row);
          EXPECT_LT(RelativeError(ToDouble(RowOf(result.outputs[i], shape, row)), reference),
                    kBound)
              << "heads " << shape.head_count << " sequence " << i << " row " << row;
        }
      }
    }
  }
}

// Small enough for compute-sanitizer: more tiles than a block has stages, the end of a split in one
// block, and splits in blocks of their own.
TEST_P(AttentionReferenceTest, WindowsOverStagesAndSplitsMatchTheReference) {
  const auto ops = MakeOps(Schedule::kCanonical, GetParam());
  const AttentionShape shape = {.head_count = 4, .kv_head_count = 1, .head_dim = 128};
  for (const int32_t position : {560, 1300}) {
    const CaseResult result = RunAttentionCase(*ops, shape, {{9, position, 40, 1}}, 2);
    for (const int32_t row : {0, 39}) {
      EXPECT_LT(RelativeError(ToDouble(RowOf(result.outputs[0], shape, row)),
                              ReferenceAttention(shape, 9, position + row)),
                kBound)
          << position << " + " << row;
    }
  }
}

TEST(AttentionTest, PaddingRowsAreZero) {
  const auto ops = MakeOps(Schedule::kCanonical);
  for (const AttentionShape& shape : kShapes) {
    const CaseResult result =
        RunAttentionCase(*ops, shape, {{1, 5, 1, 3}, {2, 70, 4, 1}, {3, 90, 40}}, 40);
    EXPECT_EQ(result.padding.size(), static_cast<size_t>(44 * shape.output_width()));
    for (const BFloat16 value : result.padding) ASSERT_EQ(value.bits, 0);
  }
}

// The same position as a decode row, in windows, in prefill chunks, with other neighbours, other
// places in the tile, and so many sequences that splits share a block.
TEST(AttentionTest, CanonicalRowsHaveTheSameBitsHoweverTheyAreAskedFor) {
  const auto ops = MakeOps(Schedule::kCanonical);
  constexpr uint64_t kSeed = 77;
  for (const AttentionShape& shape : kShapes) {
    for (const int32_t position : {0, 1, 15, 63, 64, 100, 511, 512, 700, 1023, 1024, 1600}) {
      const CaseResult alone = RunAttentionCase(*ops, shape, {{kSeed, position, 1}});
      const auto expected = RowOf(alone.outputs[0], shape, 0);
      for (const int32_t before : {1, 3, 20, 130, 600}) {
        if (before > position) continue;
        for (const int32_t after : {0, 70}) {
          const CaseResult window =
              RunAttentionCase(*ops, shape,
                               {{5, 33, 2, before % 3},
                                {kSeed, position - before, before + 1 + after, 1},
                                {6, 9, 5}},
                               before % 5);
          EXPECT_EQ(CountDifferent(RowOf(window.outputs[1], shape, before), expected), 0u)
              << "heads " << shape.head_count << " position " << position << " before " << before
              << " after " << after;
        }
      }
    }
  }
}

TEST(AttentionTest, CanonicalRowsHaveTheSameBitsWhetherSplitsShareABlockOrNot) {
  const auto ops = MakeOps(Schedule::kCanonical);
  for (const AttentionShape& shape : kShapes) {
    for (const int32_t position : {600, 1300, 2047}) {
      const CaseResult alone = RunAttentionCase(*ops, shape, {{77, position, 1}});
      // More sequences than processors could want to spread further.
      std::vector<CaseSequence> crowd(900, {3, 4, 1});
      crowd[450] = {77, position, 1};
      const CaseResult crowded = RunAttentionCase(*ops, shape, crowd);
      EXPECT_EQ(CountDifferent(crowded.outputs[450], alone.outputs[0]), 0u)
          << "heads " << shape.head_count << " position " << position;
    }
  }
}

TEST(AttentionTest, LongContextsMatchTheReferenceAndKeepTheirBits) {
  const auto ops = MakeOps(Schedule::kCanonical);
  const AttentionShape shape = {.head_count = 4, .kv_head_count = 1, .head_dim = 128};
  const int32_t position = 131071;
  const CaseResult alone = RunAttentionCase(*ops, shape, {{8, position, 1}});
  EXPECT_LT(RelativeError(ToDouble(alone.outputs[0]), ReferenceAttention(shape, 8, position)),
            kBound);
  const CaseResult window = RunAttentionCase(*ops, shape, {{8, position - 40, 41, 2}});
  EXPECT_EQ(CountDifferent(RowOf(window.outputs[0], shape, 40), alone.outputs[0]), 0u);
}

// Prefill chunks and windows give the same bits by warpgroups and by single warps, so that the
// kernels of older devices are tested too. A chunk whose rows fill a block of either, and less.
TEST(AttentionTest, WarpgroupsChangeNoBits) {
  const auto warpgroups = MakeOps(Schedule::kCanonical);
  const auto warps = MakeOps(Schedule::kCanonical, false);
  for (const AttentionShape& shape : kShapes) {
    const std::vector<CaseSequence> sequences = {
        {1, 0, 300}, {2, 1000, 64, 1}, {3, 500, 200}, {4, 63, 17}, {5, 2040, 90, 2}};
    const CaseResult expected = RunAttentionCase(*warps, shape, sequences, 3);
    const CaseResult result = RunAttentionCase(*warpgroups, shape, sequences, 3);
    for (size_t i = 0; i < sequences.size(); ++i) {
      EXPECT_EQ(CountDifferent(result.outputs[i], expected.outputs[i]), 0u)
          << "heads " << shape.head_count << " sequence " << i;
    }
  }
}

// The control: the fast schedule cuts a lone sequence finer, which changes bits.
TEST(AttentionTest, TheFastScheduleChangesBits) {
  const AttentionShape shape = kShapes[1];
  const auto canonical = MakeOps(Schedule::kCanonical);
  const auto fast = MakeOps(Schedule::kFast);
  const std::vector<CaseSequence> sequences = {{77, 1500, 1}};
  EXPECT_GT(CountDifferent(RunAttentionCase(*fast, shape, sequences).outputs[0],
                           RunAttentionCase(*canonical, shape, sequences).outputs[0]),
            0u);
}

}  // namespace
}  // namespace selfsame::testing
