#pragma once

// Causal attention over the paged cache on tensor cores.
//
// For a query row at position p and one of its heads, over keys j = 0 .. p:
//   s_j = q · k_j, bf16 products, float accumulation by tensor-core steps of 16 over d in
//   increasing
//         order
// Keys are cut at absolute multiples of `split_keys` (512 under the canonical schedule) into splits
// and of 64 into tiles. A split starts fresh (max -inf, sum and output 0) and scans its tiles in
// order:
//   new_max = max(max, max_j s_j);  alpha = 2^(max * scale - new_max * scale), each product rounded
//   p_j     = 2^fma(s_j, scale, -(new_max * scale)), scale = log2(e) / sqrt(head_dim)
//   sum     = fma(sum, alpha, sum_j p_j)   16 partial sums: quarter j / 16 of the tile, and of its
//                                          keys those with j mod 8 in {0,1}, {2,3}, {4,5} or {6,7}
//   output  = output * alpha + sum_j bf16(p_j) v_j        steps of 16 over j in increasing order
// At the end of a split the sums are added: of four lanes by a butterfly, then of the four quarters
// in order. Splits are merged in increasing order by one function, whether one thread block scanned
// them or several did, and out = bf16(output * (1 / sum)).
//
// Keys past a row's position get p_j = 0, and their values are finite or, past the item's end, not
// read; a tile, or a split, without keys for a row leaves its
// state as it was, to the bit. So a row's bits do not depend on the rows beside it, on its place
// among them, nor on how splits are spread over blocks. Keys past the last row of a work item are
// not read; zeros stand for them.
//
// Layouts: qkv [rows, qkv_width], kv [block][K then V][kv_head][16][head_dim], out [rows,
// output_width], 16-byte aligned. head_dim 64 or 128.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops.h"

namespace selfsame::cuda {

inline constexpr int32_t kAttentionTileKeys = 64;
inline constexpr int32_t kCanonicalSplitKeys = 512;
// Query rows × heads of a group that one thread block works on, at most; more where products are
// taken by warpgroups (compute capability 9.0).
inline constexpr int32_t kAttentionTileQueries = 64;
inline constexpr int32_t kWarpgroupTileQueries = 128;

// Items of at most this many query rows × heads are small: they run with fewer registers.
inline constexpr int32_t kSmallItemQueries = 16;

// How many items of each sort there are; they follow each other in this order.
struct AttentionItemCounts {
  int32_t small_split = 0;  // with one split
  int32_t large_split = 0;
  int32_t small_whole = 0;  // with all keys
  int32_t large_whole = 0;
  bool operator==(const AttentionItemCounts&) const = default;
};

// What the blocks (item, kv_head) do: rows of one sequence, or padding rows. Without rows: nothing.
struct alignas(16) AttentionItem {
  int32_t first_row = 0;       // of the pass
  int32_t row_count = 0;       // row_count * group <= the tile's queries
  int32_t first_position = 0;  // of first_row; -1: padding rows, whose output is zeroed
  int32_t block_table = 0;     // index of the sequence's first entry in block_tables
  int32_t first_key = 0;       // a multiple of split_keys
  int32_t end_key = 0;         // exclusive, at most first_position + row_count
  // -1: the item has all keys and writes the output. Else it has one split, and leaves max, sum and
  // output of its row i in row partial_row + i of the partials.
  int32_t partial_row = -1;
  int32_t unused = 0;
};

// A row whose splits are merged afterwards: split s is in partial row `partial_row + s * stride`.
// Without splits: nothing.
struct alignas(16) AttentionMerge {
  int32_t row = 0;
  int32_t partial_row = 0;
  int32_t stride = 0;
  int32_t split_count = 0;
};

// Shapes that the kernels take.
inline bool TakesAttention(const AttentionShape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) &&
         shape.head_count / shape.kv_head_count <= kAttentionTileQueries;
}

struct AttentionArgs {
  AttentionShape shape;
  int32_t tile_queries = kAttentionTileQueries;  // or kWarpgroupTileQueries
  int32_t split_keys = kCanonicalSplitKeys;      // a multiple of 64
  AttentionItemCounts counts;
  int32_t merge_count = 0;
  const AttentionItem* items = nullptr;    // device
  const AttentionMerge* merges = nullptr;  // [merge_count], device
  const int32_t* block_tables = nullptr;   // device
  const BFloat16* qkv = nullptr;
  const BFloat16* kv = nullptr;
  BFloat16* out = nullptr;
  float* partial_output = nullptr;  // [partial rows, head_count, head_dim]
  float* partial_state = nullptr;   // [partial rows, head_count, 2]: max, sum
  bool operator==(const AttentionArgs&) const = default;
};

// Whether the current device runs attention by warpgroups: it has compute capability 9.0, and the
// kernels were compiled for sm_90a. Waits for the device; once, at start.
cudaError_t HasWarpgroupAttention(bool& is_built);
// Loads the kernels and raises their shared memory limits on the current device; once, at start.
// `tile_queries`: of all passes to come.
cudaError_t PrepareAttention(int32_t tile_queries);
cudaError_t RunAttention(const AttentionArgs& args, cudaStream_t stream);

}  // namespace selfsame::cuda
