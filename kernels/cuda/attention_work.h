#pragma once

// Cuts a pass into the work items of the attention kernel. Host code; decides speed, and under the
// fast schedule also where splits end.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

// `count` rounded up to a multiple of a quarter of the power of two below it: at most a quarter
// more, and few different results, so that passes of nearly equal shape look alike.
int32_t RoundedCount(int32_t count);

struct AttentionLimits {
  Schedule schedule = Schedule::kFast;
  int32_t processor_count = 0;                   // multiprocessors of the device
  int32_t tile_queries = kAttentionTileQueries;  // as in AttentionArgs
  int32_t max_partial_rows = 0;                  // rows the partials have room for
};

struct AttentionWork {
  // Sorted as `counts` says; items without rows and merges without splits fill up each sort, and
  // the merges, to a rounded count.
  std::vector<AttentionItem> items;
  AttentionItemCounts counts;
  std::vector<AttentionMerge> merges;
  int32_t tile_queries = kAttentionTileQueries;
  int32_t split_keys = kCanonicalSplitKeys;
  std::array<std::vector<AttentionItem>, 4> sorted;  // working memory: items by sort
};

// `block_table_offsets[i]` is where sequence i's block table starts among all. Every row of the
// pass is in exactly one whole item, or in one item for each split. `work` is reused between
// passes, so that its memory is. REQUIRES: head_count / kv_head_count <= kAttentionTileQueries.
void BuildAttentionWork(const Pass& pass, std::span<const int32_t> block_table_offsets,
                        const AttentionShape& shape, const AttentionLimits& limits,
                        AttentionWork& work);

}  // namespace selfsame::cuda
