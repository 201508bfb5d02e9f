#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/unit/kernels/attention_testing.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace selfsame {
namespace {

using testing::ForcedTarget;
using testing::MakeOps;
using testing::MakeSequence;
using testing::PagedCache;
using testing::SameBits;
using testing::ScatteredTable;
using testing::SequenceData;

// Runs rows [begin, end) of several equally long sequences as one pass; `padding` rows come first
// and between them. Returns each sequence's rows.
struct PassRun {
  std::vector<std::vector<BFloat16>> rows;
  std::vector<BFloat16> padding;
};

PassRun RunPass(Ops& ops, PagedCache& cache, const std::vector<SequenceData>& sequences,
                const std::vector<std::vector<int32_t>>& tables, int32_t begin, int32_t end,
                int32_t padding) {
  const AttentionShape& shape = sequences[0].shape;
  const int32_t count = end - begin;
  std::vector<SequenceRows> rows;
  int32_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    row += padding;
    rows.push_back({row, count, begin, tables[i].data()});
    row += count;
  }
  const int64_t width = shape.qkv_width();
  std::vector<BFloat16> qkv(row * width, BFloat16{0x3f80});
  for (size_t i = 0; i < sequences.size(); ++i) {
    cache.Write(sequences[i], tables[i], begin, end);
    std::copy_n(sequences[i].qkv.begin() + begin * width, count * width,
                qkv.begin() + rows[i].first_row * width);
  }
  const std::vector<int32_t> zeros(row);
  Pass pass;
  pass.row_count = row;
  pass.token_ids = zeros;
  pass.positions = zeros;
  pass.sequences = rows;
  std::vector<BFloat16> out(int64_t{row} * shape.output_width(), BFloat16{0x7fc1});
  ops.BeginPass(pass);
  ops.Attention(shape, qkv.data(), cache.layer(), out.data());
  EXPECT_TRUE(ops.EndPass().ok());

  PassRun run;
  for (const SequenceRows& sequence : rows) {
    const auto first = out.begin() + int64_t{sequence.first_row} * shape.output_width();
    run.rows.emplace_back(first, first + int64_t{count} * shape.output_width());
    run.padding.insert(run.padding.end(), first - int64_t{padding} * shape.output_width(), first);
  }
  return run;
}

// Positions from `first` on of one sequence, computed in passes of `step` rows; earlier ones are in
// the cache already.
std::vector<BFloat16> RunInSteps(Ops& ops, const SequenceData& data, int32_t step,
                                 int32_t first = 0) {
  const int32_t blocks = (data.length + kKvBlockTokens - 1) / kKvBlockTokens;
  const std::vector<std::vector<int32_t>> tables = {ScatteredTable(0, 1, blocks)};
  PagedCache cache(data.shape, blocks);
  cache.Write(data, tables[0], 0, first);
  std::vector<BFloat16> all;
  for (int32_t begin = first; begin < data.length; begin += step) {
    const int32_t end = std::min(begin + step, data.length);
    const PassRun run = RunPass(ops, cache, {data}, tables, begin, end, 0);
    all.insert(all.end(), run.rows[0].begin(), run.rows[0].end());
  }
  return all;
}

constexpr AttentionShape kShapes[] = {{9, 3, 64}, {2, 2, 32}, {8, 2, 128}, {8, 1, 16}, {5, 1, 48}};

TEST(AttentionTest, CanonicalEqualsTheScalarDefinitionOnEveryTargetAndThreadCount) {
  for (const AttentionShape& shape : kShapes) {
    const SequenceData data = MakeSequence(shape, 81, 11);
    std::vector<BFloat16> expected;
    for (int32_t position = 0; position < data.length; ++position) {
      for (int32_t head = 0; head < shape.head_count; ++head) {
        const auto row = testing::ScalarAttention(data, position, head);
        expected.insert(expected.end(), row.begin(), row.end());
      }
    }
    for (const int threads : {1, 2, 3}) {
      auto ops = MakeOps(Schedule::kCanonical, threads);
      for (const int64_t target : testing::UsableTargets()) {
        const ForcedTarget forced(target);
        for (const int32_t step : {1, 7, 64, 81}) {
          if (step == 1 && threads != 2) continue;
          EXPECT_TRUE(SameBits(RunInSteps(*ops, data, step), expected))
              << "heads " << shape.head_count << "/" << shape.kv_head_count << " dim "
              << shape.head_dim << " threads " << threads << " target " << target << " step "
              << step;
        }
      }
    }
  }
}

TEST(AttentionTest, SplitsMergeInOrderAcrossTheirBoundaries) {
  const AttentionShape shape = {3, 1, 32};
  const SequenceData data = MakeSequence(shape, 1050, 12);
  auto ops = MakeOps(Schedule::kCanonical, 2);
  const auto prefill = RunInSteps(*ops, data, data.length);
  EXPECT_TRUE(SameBits(RunInSteps(*ops, data, 161), prefill));
  for (const int32_t position : {0, 15, 16, 63, 64, 511, 512, 513, 575, 576, 1023, 1024, 1049}) {
    for (int32_t head = 0; head < shape.head_count; ++head) {
      const auto expected = testing::ScalarAttention(data, position, head);
      const auto first = prefill.begin() + position * shape.output_width() + head * shape.head_dim;
      EXPECT_TRUE(SameBits({first, first + shape.head_dim}, expected)) << "position " << position;
    }
  }
}

// Long enough that few tasks share their splits over threads.
TEST(AttentionTest, ALongContextIsTheSameHoweverItsSplitsAreShared) {
  for (const AttentionShape& shape : {AttentionShape{3, 3, 32}, AttentionShape{8, 1, 64}}) {
    const SequenceData data = MakeSequence(shape, 2100, 14);
    const int32_t blocks = (data.length + kKvBlockTokens - 1) / kKvBlockTokens;
    const std::vector<std::vector<int32_t>> tables = {ScatteredTable(0, 1, blocks)};
    PagedCache cache(shape, blocks);
    cache.Write(data, tables[0], 0, data.length);
    const int32_t last = data.length - 1;
    std::vector<BFloat16> expected;
    for (int32_t head = 0; head < shape.head_count; ++head) {
      const auto row = testing::ScalarAttention(data, last, head);
      expected.insert(expected.end(), row.begin(), row.end());
    }
    for (const int threads : {1, 2, 3, 5}) {
      auto ops = MakeOps(Schedule::kCanonical, threads);
      EXPECT_TRUE(
          SameBits(RunPass(*ops, cache, {data}, tables, last, last + 1, 0).rows[0], expected))
          << threads;
      EXPECT_TRUE(
          SameBits(RunPass(*ops, cache, {data}, tables, last, last + 1, 3).rows[0], expected))
          << threads;
      auto fast = MakeOps(Schedule::kFast, threads);
      const auto rows = RunPass(*fast, cache, {data}, tables, last, last + 1, 0).rows[0];
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(ToFloat(rows[i]), ToFloat(expected[i]), 0.004) << threads;
      }
    }
  }
}

// `rows` are positions from `first` on.
void ExpectClose(const SequenceData& data, const std::vector<BFloat16>& rows, int32_t first,
                 int32_t position, double tolerance) {
  const AttentionShape& shape = data.shape;
  for (int32_t head = 0; head < shape.head_count; ++head) {
    const auto expected = testing::DoubleAttention(data, position, head);
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      const int64_t at = (position - first) * shape.output_width() + head * shape.head_dim + d;
      ASSERT_NEAR(ToFloat(rows[at]), expected[d], tolerance) << "position " << position;
    }
  }
}

TEST(AttentionTest, BothSchedulesAreCloseToDoublePrecision) {
  // Values lie in [-2, 2], where half a unit of bf16 is 2^-8.
  constexpr double kTolerance = 0.0042;
  for (const Schedule schedule : {Schedule::kFast, Schedule::kCanonical}) {
    auto ops = MakeOps(schedule, 2);
    for (const AttentionShape& shape : kShapes) {
      const SequenceData data = MakeSequence(shape, 520, 13);
      const auto prefill = RunInSteps(*ops, data, data.length);
      for (const int32_t position : {0, 1, 15, 16, 63, 64, 300, 511, 512, 519}) {
        ExpectClose(data, prefill, 0, position, kTolerance);
      }
      const auto decoded = RunInSteps(*ops, data, 1, 510);
      for (const int32_t position : {510, 511, 512, 519}) {
        ExpectClose(data, decoded, 510, position, kTolerance);
      }
    }
  }
}

TEST(AttentionTest, CanonicalRowsIgnoreOtherSequencesAndPaddingRowsAreZero) {
  const AttentionShape shape = {6, 2, 64};
  const int32_t length = 90;
  const int32_t blocks = (length + kKvBlockTokens - 1) / kKvBlockTokens;
  auto ops = MakeOps(Schedule::kCanonical, 2);
  std::vector<SequenceData> sequences;
  std::vector<std::vector<int32_t>> tables;
  for (int32_t i = 0; i < 3; ++i) {
    sequences.push_back(MakeSequence(shape, length, 20 + i));
    tables.push_back(ScatteredTable(i, 3, blocks));
  }
  PagedCache cache(shape, 3 * blocks);
  const PassRun together = RunPass(*ops, cache, sequences, tables, 0, length, 2);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(SameBits(together.rows[i], RunInSteps(*ops, sequences[i], length)));
  }
  for (const BFloat16 value : together.padding) EXPECT_EQ(value.bits, 0);
}

TEST(AttentionTest, WhatLiesPastARowCannotReachItEvenAsSignedZerosOrNaN) {
  const AttentionShape shape = {3, 1, 32};
  SequenceData data = MakeSequence(shape, 40, 30);
  // Values that underflow to a negative zero when weighted, so that adding any zero would show.
  for (int32_t position = 0; position < data.length; ++position) {
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      data.qkv[position * shape.qkv_width() + 4 * shape.head_dim + d] = BFloat16{0x8080};
    }
  }
  SequenceData poisoned = data;
  for (size_t i = int64_t{20} * shape.qkv_width(); i < poisoned.qkv.size(); ++i) {
    poisoned.qkv[i] = BFloat16{0x7fc1};
  }
  auto ops = MakeOps(Schedule::kCanonical, 1);
  const auto clean_rows = RunInSteps(*ops, data, 1);
  const auto prefill_rows = RunInSteps(*ops, data, data.length);
  const auto poisoned_rows = RunInSteps(*ops, poisoned, data.length);
  const auto prefix = [&](const std::vector<BFloat16>& rows) {
    return std::vector<BFloat16>(rows.begin(), rows.begin() + 20 * shape.output_width());
  };
  EXPECT_TRUE(SameBits(prefill_rows, clean_rows));
  EXPECT_TRUE(SameBits(prefix(poisoned_rows), prefix(clean_rows)));
}

}  // namespace
}  // namespace selfsame
