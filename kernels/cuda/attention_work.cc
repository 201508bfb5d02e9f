#include "kernels/cuda/attention_work.h"

#include <algorithm>

#include "common/check.h"

namespace selfsame::cuda {
namespace {

// Blocks a multiprocessor should have to choose from: with fewer, splits get blocks of their own.
constexpr int32_t kTargetBlocksPerProcessor = 6;
// Below this many, the fast schedule cuts finer than the canonical one.
constexpr int32_t kMinBlocksPerProcessor = 2;
constexpr int32_t kMinSplitKeys = 128;

// In the order of AttentionItemCounts.
enum Sort : size_t { kSmallSplit, kLargeSplit, kSmallWhole, kLargeWhole };

int32_t CeilDiv(int32_t a, int32_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Thread blocks when every split of every item has one.
int64_t BlockCount(const Pass& pass, int32_t item_rows, int32_t kv_heads, int32_t split_keys) {
  int64_t items = 0;
  for (const SequenceRows& sequence : pass.sequences) {
    const int32_t length = sequence.first_position + sequence.row_count;
    items += int64_t{CeilDiv(sequence.row_count, item_rows)} * CeilDiv(length, split_keys);
  }
  return items * kv_heads;
}

class Builder {
 public:
  Builder(const AttentionLimits& limits, int32_t group, bool may_split, AttentionWork& work)
      : group_(group),
        item_rows_(kAttentionTileQueries / group),
        partial_rows_left_(may_split ? limits.max_partial_rows : 0),
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
    const bool is_small = item.row_count * group_ <= kSmallItemQueries;
    if (splits == 1 || partial_rows > partial_rows_left_) {
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
  const int32_t item_rows = kAttentionTileQueries / group;
  work.items.clear();
  work.merges.clear();
  for (auto& items : work.sorted) items.clear();
  work.split_keys = kCanonicalSplitKeys;
  const auto blocks = [&](int32_t split_keys) {
    return BlockCount(pass, item_rows, shape.kv_head_count, split_keys);
  };
  const bool may_split =
      blocks(INT32_MAX) < int64_t{kTargetBlocksPerProcessor} * limits.processor_count;
  if (may_split && limits.schedule == Schedule::kFast) {
    const int64_t enough = int64_t{kMinBlocksPerProcessor} * limits.processor_count;
    while (work.split_keys > kMinSplitKeys && blocks(work.split_keys) < enough) {
      work.split_keys /= 2;
    }
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
