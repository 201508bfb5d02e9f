#pragma once

// Causal attention of rows over the paged cache. For each query row and head, over keys j up to the
// row's position:
//   s_j = scale * pair chain over d of q[d] * k[j, d] (odd element of a pair first, as in gemm.h)
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

// Working memory of one thread, 64-byte aligned; see AttentionScratchFloats.
struct AttentionScratch {
  float* data = nullptr;
};

// Floats of scratch a task needs for `query_count` rows × heads.
int64_t AttentionScratchFloats(const AttentionShape& shape, int32_t query_count);

// Rows of one sequence that a task takes, at most, for this shape.
int32_t AttentionTaskRows(const AttentionShape& shape);

// Rows [row_begin, row_begin + row_count) of a sequence, counted from its first row, and all query
// heads that share `kv_head`.
struct AttentionTask {
  SequenceRows sequence;
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t kv_head = 0;

  // Keys that the task's last row sees.
  int32_t key_count() const { return sequence.first_position + row_begin + row_count; }
};

// Everything the tasks of one call share.
struct AttentionCall {
  AttentionShape shape;
  const BFloat16* qkv = nullptr;  // [rows, qkv_width] of the pass
  const BFloat16* kv = nullptr;   // the layer's cache
  BFloat16* out = nullptr;        // [rows, output_width] of the pass
  // As HasBf16Dot(); changes no bits.
  bool has_bf16_dot = false;
  // Keys of a split: kSplitKeys in the canonical schedule; a multiple of kTileKeys.
  int32_t split_keys = kSplitKeys;
};

// All splits of a task, and its output.
void Attend(const AttentionCall& call, const AttentionTask& task, const AttentionScratch& scratch);

// The same in two steps, so that several threads can share a long context. A task with a single row
// has TaskSplits(...) splits; each leaves SplitFloats(...) floats at its own `partial`, one after
// the other; MergeAttention makes the output of them, overwriting the first.
int32_t TaskSplits(const AttentionCall& call, const AttentionTask& task);
int64_t SplitFloats(const AttentionCall& call, const AttentionTask& task);
void AttendSplit(const AttentionCall& call, const AttentionTask& task, int32_t split,
                 const AttentionScratch& scratch, float* partial);
void MergeAttention(const AttentionCall& call, const AttentionTask& task, float* partials);

}  // namespace selfsame::cpu
