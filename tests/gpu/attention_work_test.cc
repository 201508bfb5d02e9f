// How a pass is cut into attention work. Host code: runs without a device.

#include "kernels/cuda/attention_work.h"

#include <algorithm>
#include <set>

#include "gtest/gtest.h"

namespace selfsame::cuda {
namespace {

const AttentionShape kShape = {.head_count = 32, .kv_head_count = 8, .head_dim = 128};

struct Sequence {
  int32_t first_row;
  int32_t row_count;
  int32_t first_position;
};

AttentionWork Build(const std::vector<Sequence>& sequences, int32_t rows,
                    const AttentionLimits& limits) {
  std::vector<SequenceRows> views;
  std::vector<int32_t> offsets;
  for (const Sequence& sequence : sequences) {
    views.push_back({.first_row = sequence.first_row,
                     .row_count = sequence.row_count,
                     .first_position = sequence.first_position});
    offsets.push_back(static_cast<int32_t>(offsets.size()) * 1000);
  }
  Pass pass;
  pass.row_count = rows;
  pass.sequences = views;
  AttentionWork work;
  BuildAttentionWork(pass, offsets, kShape, limits, work);
  return work;
}

// Where a row's keys are scanned.
struct RowCover {
  int whole = 0;              // items with all of them
  std::multiset<int> splits;  // numbers of those with a split
  int32_t end_key = 0;        // of the item
};

// Every row is in exactly one whole item, or in one item for each split; and every partial row in
// one item and one merge.
void CheckCover(const AttentionWork& work, const std::vector<Sequence>& sequences, int32_t rows,
                const AttentionLimits& limits) {
  std::vector<RowCover> covers(static_cast<size_t>(rows));
  std::set<int32_t> partial_rows;
  for (const AttentionItem& item : work.items) {
    ASSERT_LE(item.row_count * 4, limits.tile_queries);
    ASSERT_EQ(item.first_key % work.split_keys, 0);
    for (int32_t i = 0; i < item.row_count; ++i) {
      RowCover& cover = covers[static_cast<size_t>(item.first_row + i)];
      cover.end_key = std::max(cover.end_key, item.end_key);
      if (item.partial_row < 0) {
        ASSERT_EQ(item.first_key, 0);
        ++cover.whole;
        continue;
      }
      cover.splits.insert(item.first_key / work.split_keys);
      ASSERT_LE(item.end_key - item.first_key, work.split_keys);
      ASSERT_LT(item.partial_row + i, limits.max_partial_rows);
      ASSERT_TRUE(partial_rows.insert(item.partial_row + i).second);
    }
  }
  for (const RowCover& cover : covers) {
    const auto splits = static_cast<int>(cover.splits.size());
    ASSERT_EQ(cover.whole, splits == 0 ? 1 : 0);
    for (int split = 0; split < splits; ++split) ASSERT_EQ(cover.splits.count(split), 1u);
    if (splits > 0) {
      ASSERT_EQ(splits, (cover.end_key + work.split_keys - 1) / work.split_keys);
    }
  }
  const AttentionItemCounts& counts = work.counts;
  ASSERT_EQ(static_cast<size_t>(counts.small_split + counts.large_split + counts.small_whole +
                                counts.large_whole),
            work.items.size());
  for (int32_t i = 0; i < counts.small_split + counts.large_split; ++i) {
    const AttentionItem& item = work.items[static_cast<size_t>(i)];
    ASSERT_TRUE(item.partial_row >= 0 || item.row_count == 0);
  }
  for (const Sequence& sequence : sequences) {
    for (int32_t i = 0; i < sequence.row_count; ++i) {
      ASSERT_GE(covers[static_cast<size_t>(sequence.first_row + i)].end_key,
                sequence.first_position + i + 1);
    }
  }
  size_t merged = 0;
  for (const AttentionMerge& merge : work.merges) {
    for (int32_t split = 0; split < merge.split_count; ++split) {
      ASSERT_TRUE(partial_rows.contains(merge.partial_row + split * merge.stride));
      ++merged;
    }
  }
  EXPECT_EQ(merged, partial_rows.size());
}

TEST(AttentionWorkTest, CoversEveryRowOnceUnderBothSchedules) {
  const std::vector<Sequence> sequences = {
      {2, 1, 2000}, {3, 40, 0}, {50, 9, 505}, {59, 33, 1500}, {92, 1, 0}};
  for (const Schedule schedule : {Schedule::kFast, Schedule::kCanonical}) {
    for (const int32_t tile_queries : {kAttentionTileQueries, kWarpgroupTileQueries}) {
      for (const int32_t max_partial_rows : {0, 10, 4096}) {
        const AttentionLimits limits = {schedule, 132, tile_queries, max_partial_rows};
        CheckCover(Build(sequences, 100, limits), sequences, 100, limits);
      }
    }
  }
}

TEST(AttentionWorkTest, SplitsOnlyWhereBlocksAreFew) {
  const AttentionLimits limits = {Schedule::kCanonical, 132, kAttentionTileQueries, 4096};
  const AttentionWork lone = Build({{0, 1, 1999}}, 1, limits);
  EXPECT_EQ(lone.items.size(), 4u);
  EXPECT_EQ(lone.merges.size(), 1u);
  EXPECT_EQ(lone.counts.small_split, 4);
  std::vector<Sequence> many;
  for (int32_t i = 0; i < 200; ++i) many.push_back({i, 1, 1999});
  const AttentionWork crowd = Build(many, 200, limits);
  // Rounded up; the rest are without rows.
  EXPECT_EQ(crowd.items.size(), 224u);
  EXPECT_EQ(crowd.items[199].row_count, 1);
  EXPECT_EQ(crowd.items[200].row_count, 0);
  EXPECT_TRUE(crowd.merges.empty());
}

// Four windows of 64 rows and more are done as soon without splits, unless they are long; two are
// not.
TEST(AttentionWorkTest, WindowsOfWarpgroupsAreSplitWhereTheyLeaveProcessorsIdle) {
  const AttentionLimits limits = {Schedule::kCanonical, 132, kWarpgroupTileQueries, 4096};
  const auto build = [&](int32_t count, int32_t context) {
    std::vector<Sequence> windows;
    for (int32_t i = 0; i < count; ++i) windows.push_back({i * 64, 64, context});
    return Build(windows, count * 64, limits);
  };
  for (const int32_t count : {4, 8}) {
    EXPECT_EQ(build(count, 1024).counts.large_whole, 2 * count);
    EXPECT_EQ(build(count, 1024).counts.large_split, 0);
  }
  EXPECT_EQ(build(4, 8000).counts.large_whole, 0);
  EXPECT_EQ(build(2, 1024).counts.large_whole, 0);
  EXPECT_EQ(build(2, 1024).counts.large_split, 12);
}

TEST(AttentionWorkTest, TheCanonicalScheduleNeverChangesWhereSplitsEnd) {
  for (const int32_t rows : {1, 5, 64}) {
    const AttentionLimits canonical = {Schedule::kCanonical, 132, kAttentionTileQueries, 4096};
    EXPECT_EQ(Build({{0, rows, 700}}, rows, canonical).split_keys, kCanonicalSplitKeys);
  }
  const AttentionLimits fast = {Schedule::kFast, 132, kAttentionTileQueries, 4096};
  EXPECT_LT(Build({{0, 1, 700}}, 1, fast).split_keys, kCanonicalSplitKeys);
}

TEST(AttentionWorkTest, PassesOfNearlyEqualShapeHaveEqualCounts) {
  const AttentionLimits limits = {Schedule::kCanonical, 132, kAttentionTileQueries, 4096};
  const auto build = [&](int32_t first_length) {
    std::vector<Sequence> sequences;
    for (int32_t i = 0; i < 17; ++i) sequences.push_back({i, 1, first_length + 3 * i});
    return Build(sequences, 20, limits);
  };
  // One sequence more has crossed into its third split.
  const AttentionWork a = build(1024 - 3 * 5);
  const AttentionWork b = build(1024 - 3 * 4);
  EXPECT_EQ(a.counts, b.counts);
  EXPECT_EQ(a.merges.size(), b.merges.size());
  EXPECT_NE(a.items[40].row_count, 0);
}

TEST(AttentionWorkTest, CountsAreRoundedUpByAQuarterAtMost) {
  EXPECT_EQ(RoundedCount(0), 0);
  for (int32_t count = 1; count < 5000; ++count) {
    ASSERT_GE(RoundedCount(count), count);
    ASSERT_LE(RoundedCount(count) * 4, count * 5);
    ASSERT_EQ(RoundedCount(RoundedCount(count)), RoundedCount(count));
  }
  EXPECT_EQ(RoundedCount(129), 160);
}

TEST(AttentionWorkTest, PaddingRowsGetItemsOfTheirOwn) {
  const AttentionWork work =
      Build({{3, 2, 0}}, 40, {Schedule::kCanonical, 132, kAttentionTileQueries, 4096});
  int32_t padding = 0;
  for (const AttentionItem& item : work.items) {
    if (item.first_position < 0) padding += item.row_count;
  }
  EXPECT_EQ(padding, 38);
}

}  // namespace
}  // namespace selfsame::cuda
