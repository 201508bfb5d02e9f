#pragma once

// Causal attention of rows over the paged cache. For each query row and head, over keys j up to the
// row's position:
//   s_j = scale * sum over d ascending of fma(q[d], k[j, d])
// Keys are cut at absolute multiples of 512 into splits and of 64 into tiles. A split starts fresh
// (max -inf, sums and output 0) and scans its tiles in order:
//   new_max = max(max, max_j s_j);  alpha = exp(max - new_max);  p_j = exp(s_j - new_max)
//   sum lane j mod 16 = lane * alpha, then + p_j, j ascending
//   o[d] = o[d] * alpha, then fma(p_j, v[j, d], o[d]), j ascending
// Splits are merged in increasing order (MergeSplit) and out = bf16(o / sum). Keys past the row's
// position are neither added nor multiplied by, so nothing stored there can matter; a tile without
// keys for a row is not visited.

#include <cstdint>

#include "kernels/ops.h"

namespace selfsame::cpu {

inline constexpr int kTileKeys = 64;
inline constexpr int kSplitKeys = 512;
inline constexpr int kMaxHeadDim = 256;
// Query rows × heads that one task works on, at most (a single row's group of heads may be more).
inline constexpr int kTaskQueries = 64;

// Working memory of one thread, float words.
struct AttentionScratch {
  float* data = nullptr;
};

// Floats of scratch a task needs for `query_count` rows × heads.
int64_t AttentionScratchFloats(const AttentionShape& shape, int32_t query_count);

// Rows of one sequence that a task takes, at most, for this shape.
int32_t AttentionTaskRows(const AttentionShape& shape);

// One task: rows [row_begin, row_begin + row_count) of a sequence, counted from its first row, and
// all query heads that share `kv_head`.
struct AttentionTask {
  SequenceRows sequence;
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t kv_head = 0;
};

// qkv: [rows, qkv_width] of the pass, out: [rows, output_width] of the pass.
void AttendCanonical(const AttentionShape& shape, const AttentionTask& task, const BFloat16* qkv,
                     const BFloat16* kv, const AttentionScratch& scratch, BFloat16* out);

}  // namespace selfsame::cpu
