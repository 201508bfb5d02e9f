#include "kernels/cuda/attention_work.h"

#include <algorithm>

#include "common/check.h"

namespace selfsame::cuda {
namespace {

// Blocks a multiprocessor should have to choose from: with fewer, splits get blocks of their own.
constexpr double kTargetBlocksPerProcessor = 6.0;
// What merging splits costs, in tiles that a block of warpgroups scans meanwhile.
constexpr int64_t kMergeTiles = 4;
// Below this many, the fast schedule cuts finer than the canonical one.
constexpr int32_t kMinBlocksPerProcessor = 2;
constexpr int32_t kMinSplitKeys = 128;

// In the order of AttentionItemCounts.
enum Sort : size_t { kSmallSplit, kLargeSplit, kSmallWhole, kLargeWhole };

int32_t CeilDiv(int32_t a, int32_t b) { return a / b + (a % b != 0 ? 1 : 0); }

bool IsSmall(int32_t row_count, int32_t group) { return row_count * group <= kSmallItemQueries; }

// Thread blocks when every split of every item has one.
struct BlockCounts {
  int64_t small = 0;
  int64_t large = 0;
};
BlockCounts CountBlocks(const Pass& pass, const AttentionShape& shape, int32_t item_rows,
                        int32_t split_keys) {
  const int32_t group = shape.head_count / shape.kv_head_count;
  BlockCounts counts;
  for (const SequenceRows& sequence : pass.sequences) {
    const int32_t length = sequence.first_position + sequence.row_count;
    const int64_t items = CeilDiv(sequence.row_count, item_rows);
    (IsSmall(sequence.row_count, group) ? counts.small : counts.large) +=
        items * CeilDiv(length, split_keys) * shape.kv_head_count;
  }
  return counts;
}

// Which sorts of items get a block for each split, rather than one for all their keys. Under the
// canonical schedule this changes no bits.
//
// Several small items, or large ones of the older kernel, share a multiprocessor: they are split
// when their blocks are few. A block of warpgroups fills a multiprocessor, so their blocks come in
// rounds: they are split when the rounds of shorter blocks, and the merge, scan fewer tiles. With
// 132 multiprocessors, 8 kv heads and groups of 4: eight windows of 64 rows at 1,024 keys are 128
// blocks of 17 tiles, one round; split they would be 384 blocks of 8, so 3 rounds and 24 tiles:
// they stay whole. One such window is 16 blocks of 17 tiles; split, 48 blocks of 8 and a merge: 12.
struct MaySplit {
  bool small = false;
  bool large = false;
};

// Of blocks of warpgroups; counted in tiles that a multiprocessor scans.
bool PaysToSplit(const Pass& pass, const AttentionShape& shape, const AttentionLimits& limits) {
  constexpr int64_t kSplitTiles = kCanonicalSplitKeys / kAttentionTileKeys;
  const int32_t group = shape.head_count / shape.kv_head_count;
  int64_t split_blocks = 0;
  int64_t all_tiles = 0;
  int64_t most_tiles = 0;
  for (const SequenceRows& sequence : pass.sequences) {
    if (IsSmall(sequence.row_count, group)) continue;
    const int32_t length = sequence.first_position + sequence.row_count;
    const int64_t blocks =
        int64_t{CeilDiv(sequence.row_count, limits.tile_queries / group)} * shape.kv_head_count;
    const int64_t tiles = CeilDiv(length, kAttentionTileKeys);
    split_blocks += blocks * CeilDiv(length, kCanonicalSplitKeys);
    all_tiles += blocks * tiles;
    most_tiles = std::max(most_tiles, tiles);
  }
  const int64_t processors = limits.processor_count;
  const int64_t whole = std::max(most_tiles, (all_tiles + processors - 1) / processors);
  const int64_t rounds = (split_blocks + processors - 1) / processors;
  return rounds * std::min(most_tiles, kSplitTiles) + kMergeTiles < whole;
}

MaySplit DecideSplits(const Pass& pass, const AttentionShape& shape, const BlockCounts& whole,
                      const AttentionLimits& limits) {
  const bool are_few = static_cast<double>(whole.small + whole.large) <
                       kTargetBlocksPerProcessor * limits.processor_count;
  const bool has_warpgroups = limits.tile_queries == kWarpgroupTileQueries;
  return {are_few, has_warpgroups ? PaysToSplit(pass, shape, limits) : are_few};
}

class Builder {
 public:
  Builder(const AttentionLimits& limits, int32_t group, MaySplit may_split, AttentionWork& work)
      : group_(group),
        item_rows_(limits.tile_queries / group),
        may_split_(may_split),
        partial_rows_left_(limits.max_partial_rows),
        work_(work) {}

  void AddPadding(int32_t first_row, int32_t end_row) {
    for (int32_t row = first_row; row < end_row; row += item_rows_) {
      work_.sorted[kSmallWhole].push_back({.first_row = row,
                                           .row_count = std::min(item_rows_, end_row - row),
                                           .first_position = -1});
    }
  }

  void AddSequence(const SequenceRows& sequence, int32_t block_table) {
    for (int32_t row = 0; row < sequence.row_count; row += item_rows_) {
      const int32_t count = std::min(item_rows_, sequence.row_count - row);
      AddRows({.first_row = sequence.first_row + row,
               .row_count = count,
               .first_position = sequence.first_position + row,
               .block_table = block_table,
               .first_key = 0,
               .end_key = sequence.first_position + row + count});
    }
  }

 private:
  void AddRows(AttentionItem item) {
    const int32_t splits = CeilDiv(item.end_key, work_.split_keys);
    const int64_t partial_rows = int64_t{splits} * item.row_count;
    const bool is_small = IsSmall(item.row_count, group_);
    const bool may_split = is_small ? may_split_.small : may_split_.large;
    if (!may_split || splits == 1 || partial_rows > partial_rows_left_) {
      work_.sorted[is_small ? kSmallWhole : kLargeWhole].push_back(item);
      return;
    }
    for (int32_t row = 0; row < item.row_count; ++row) {
      work_.merges.push_back({.row = item.first_row + row,
                              .partial_row = next_partial_row_ + row,
                              .stride = item.row_count,
                              .split_count = splits});
    }
    const int32_t end_key = item.end_key;
    for (int32_t split = 0; split < splits; ++split) {
      item.first_key = split * work_.split_keys;
      item.end_key = std::min(item.first_key + work_.split_keys, end_key);
      item.partial_row = next_partial_row_ + split * item.row_count;
      work_.sorted[is_small ? kSmallSplit : kLargeSplit].push_back(item);
    }
    next_partial_row_ += static_cast<int32_t>(partial_rows);
    partial_rows_left_ -= partial_rows;
  }

  const int32_t group_;
  const int32_t item_rows_;
  const MaySplit may_split_;
  int64_t partial_rows_left_;
  int32_t next_partial_row_ = 0;
  AttentionWork& work_;
};

}  // namespace

int32_t RoundedCount(int32_t count) {
  int32_t step = 1;
  while (step * 8 <= count) step *= 2;
  return (count + step - 1) / step * step;
}

void BuildAttentionWork(const Pass& pass, std::span<const int32_t> block_table_offsets,
                        const AttentionShape& shape, const AttentionLimits& limits,
                        AttentionWork& work) {
  const int32_t group = shape.head_count / shape.kv_head_count;
  SELFSAME_CHECK(group >= 1 && group <= kAttentionTileQueries);
  const int32_t item_rows = limits.tile_queries / group;
  work.items.clear();
  work.merges.clear();
  for (auto& items : work.sorted) items.clear();
  work.tile_queries = limits.tile_queries;
  work.split_keys = kCanonicalSplitKeys;
  const auto blocks = [&](int32_t split_keys) {
    return CountBlocks(pass, shape, item_rows, split_keys);
  };
  const BlockCounts whole = blocks(INT32_MAX);
  const MaySplit may_split = DecideSplits(pass, shape, whole, limits);
  const bool will_split =
      (may_split.small && whole.small > 0) || (may_split.large && whole.large > 0);
  if (will_split && limits.schedule == Schedule::kFast) {
    const int64_t enough = int64_t{kMinBlocksPerProcessor} * limits.processor_count;
    const auto are_few = [&](int32_t split_keys) {
      const BlockCounts counts = blocks(split_keys);
      return counts.small + counts.large < enough;
    };
    while (work.split_keys > kMinSplitKeys && are_few(work.split_keys)) work.split_keys /= 2;
  }
  Builder builder(limits, group, may_split, work);
  int32_t next_row = 0;
  for (size_t i = 0; i < pass.sequences.size(); ++i) {
    const SequenceRows& sequence = pass.sequences[i];
    builder.AddPadding(next_row, sequence.first_row);
    builder.AddSequence(sequence, block_table_offsets[i]);
    next_row = sequence.first_row + sequence.row_count;
  }
  builder.AddPadding(next_row, pass.row_count);
  const auto rounded = [](size_t size) {
    return static_cast<size_t>(RoundedCount(static_cast<int32_t>(size)));
  };
  work.merges.resize(rounded(work.merges.size()));
  for (auto& items : work.sorted) {
    items.resize(rounded(items.size()), AttentionItem{.first_position = -1});
    work.items.insert(work.items.end(), items.begin(), items.end());
  }
  const auto count = [&work](Sort sort) { return static_cast<int32_t>(work.sorted[sort].size()); };
  work.counts = {.small_split = count(kSmallSplit),
                 .large_split = count(kLargeSplit),
                 .small_whole = count(kSmallWhole),
                 .large_whole = count(kLargeWhole)};
}

}  // namespace selfsame::cuda
