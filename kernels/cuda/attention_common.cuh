#pragma once

// What the attention kernels share: the softmax of splits and how they merge, tiles of keys and
// values in shared memory, and where queries and outputs are. A kernel's block has kThreads
// threads.

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace selfsame::cuda {

inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = kAttentionWarps * kWarpSize;
inline constexpr int kAttentionStages = 2;
// The keys of a tile whose probabilities have partial sums of their own.
inline constexpr int kSumKeys = kAttentionTileKeys / kAttentionWarps;
static_assert(kSumKeys == kMmaDepth);

// A tile of [kRows][kWidth] in shared memory. Rows are padded by 16 bytes, so that the eight rows a
// matrix load touches lie in different banks.
template <int kRows, int kWidth>
struct Tile {
  static constexpr int kPitch = kWidth + kVectorElements;
  BFloat16 data[kRows * kPitch];

  __device__ static int Offset(int row, int column) { return row * kPitch + column; }
};
template <int kHeadDim>
using KeyTile = Tile<kAttentionTileKeys, kHeadDim>;

// What is subtracted from scaled scores: the scaled maximum, or 0 where no key has been seen.
__device__ inline float Reference(float max, float scale) {
  return max == NegativeInfinity() ? 0.0f : max * scale;
}
// 2^(score * scale - reference).
__device__ inline float Probability(float score, float scale, float reference) {
  return Exp2(__fmaf_rn(score, scale, -reference));
}
// What sums and outputs under an old maximum are multiplied by: exactly 1 where it is the new one.
__device__ inline float Rescale(float old_max, float scale, float reference) {
  return Exp2(old_max * scale - reference);
}

// Adds a split's max and sum to those of the splits before; the weights say how outputs combine.
struct MergeWeights {
  float before;
  float now;
};
__device__ inline MergeWeights MergeSplit(float scale, float split_max, float split_sum, float& max,
                                          float& sum) {
  const float new_max = fmaxf(max, split_max);
  const float reference = Reference(new_max, scale);
  const MergeWeights weights = {Rescale(max, scale, reference),
                                Rescale(split_max, scale, reference)};
  sum = __fmaf_rn(split_sum, weights.now, sum * weights.before);
  max = new_max;
  return weights;
}
__device__ inline float MergeOutput(float split_output, float output, MergeWeights weights) {
  return __fmaf_rn(split_output, weights.now, output * weights.before);
}
// What outputs are multiplied by in the end.
__device__ inline float InverseSum(float sum) { return __frcp_rn(sum); }
// Adding 0 makes -0 into 0: which of the two a sum of zeros gives may depend on masked keys.
__device__ inline float Normalise(float output, float inverse) { return output * inverse + 0.0f; }

// What a kernel is launched with: the items [first_item, ..) of one sort.
struct AttentionCall {
  AttentionArgs args;
  int32_t first_item = 0;
  int32_t group = 0;           // query heads of a kv head
  uint32_t inverse_group = 0;  // InverseGroup(group)
  float scale = 0.0f;          // of scores, in units of the exponent of 2
};

// query / group = query * InverseGroup(group) / 2^16: exactly, for the queries of an item.
inline uint32_t InverseGroup(int32_t group) { return 65536u / static_cast<uint32_t>(group) + 1; }
static_assert(kWarpgroupTileQueries * kAttentionTileQueries < 65536);

// What the threads of a block know of their item. Its queries are numbered row * group + head.
struct AttentionBlock {
  AttentionItem item;
  int32_t group;
  uint32_t inverse_group;
  int warp;
  int lane;

  __device__ explicit AttentionBlock(const AttentionCall& call)
      : item(call.args.items[call.first_item + static_cast<int32_t>(blockIdx.x)]),
        group(call.group),
        inverse_group(call.inverse_group),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize) {}

  __device__ int32_t query_count() const { return item.row_count * group; }
  __device__ int32_t row_of(int32_t query) const {
    return static_cast<int32_t>(static_cast<uint32_t>(query) * inverse_group >> 16);
  }
  __device__ int32_t head_of(int32_t query) const {
    return static_cast<int32_t>(blockIdx.y) * group + query - row_of(query) * group;
  }
  __device__ int32_t position_of(int32_t query) const {
    return item.first_position + row_of(query);
  }
};

constexpr int kTilePages = kAttentionTileKeys / kKvBlockTokens;

// The blocks of the cache that hold the tile from `first_key` on; 0 for those past the item's end.
struct TilePages {
  int32_t blocks[kTilePages];

  __device__ void Load(const AttentionArgs& args, const AttentionBlock& block, int32_t first_key) {
    const int32_t* table = args.block_tables + block.item.block_table + first_key / kKvBlockTokens;
#pragma unroll
    for (int page = 0; page < kTilePages; ++page) {
      const bool is_present = first_key + page * kKvBlockTokens < block.item.end_key;
      blocks[page] = is_present ? table[page] : 0;
    }
  }
};

// Starts copying a tile's keys and values, at positions [first_key, first_key + 64) below the
// item's end; zeros stand for the rest. By kAttentionThreads threads, of which the caller is
// number `thread`. KvTile::Offset(row, column) moves by 8 kPitch where row grows by 8.
template <int kHeadDim, typename KvTile>
__device__ inline void LoadTile(const AttentionArgs& args, const AttentionBlock& block, int thread,
                                int32_t first_key, const TilePages& pages, KvTile& keys,
                                KvTile& values) {
  constexpr int kChunks = kHeadDim / kVectorElements;
  constexpr int kStepRows = kAttentionThreads / kChunks;
  constexpr int kHeadSize = kKvBlockTokens * kHeadDim;
  static_assert(kStepRows % 8 == 0);
  const int row = thread / kChunks;
  const int dim = thread % kChunks * kVectorElements;
  const int64_t kind_size = int64_t{kHeadSize} * args.shape.kv_head_count;
  const BFloat16* thread_kv =
      args.kv + static_cast<int>(blockIdx.y) * kHeadSize + row * kHeadDim + dim;
  const int32_t present = block.item.end_key - first_key;  // keys of the tile that there are
  const int place = KvTile::Offset(row, dim);
#pragma unroll
  for (int page = 0; page < kTilePages; ++page) {
    const BFloat16* source = thread_kv + pages.blocks[page] * 2 * kind_size;
#pragma unroll
    for (int step = 0; step < kKvBlockTokens / kStepRows; ++step) {
      const int key = page * kKvBlockTokens + step * kStepRows;
      const bool is_present = key + row < present;
      const BFloat16* from = source + step * kStepRows * kHeadDim;
      const int to = place + key * KvTile::kPitch;
      CopyAsync(keys.data + to, from, is_present);
      CopyAsync(values.data + to, from + kind_size, is_present);
    }
  }
}

// The address of a query; null past the item's end.
template <int kHeadDim>
__device__ inline const BFloat16* QueryAt(const AttentionArgs& args, const AttentionBlock& block,
                                          int32_t query) {
  if (query >= block.query_count()) return nullptr;
  const int64_t width = int64_t{args.shape.head_count + 2 * args.shape.kv_head_count} * kHeadDim;
  return args.qkv + (block.item.first_row + block.row_of(query)) * width +
         block.head_of(query) * kHeadDim;
}

// A row tile of 16 queries from `first_query` on, as fragments.
template <int kHeadDim>
struct Queries {
  uint32_t fragments[kHeadDim / kMmaDepth][4];

  __device__ Queries(const AttentionArgs& args, const AttentionBlock& block, int32_t first_query) {
    const BFloat16* upper = QueryAt<kHeadDim>(args, block, first_query + block.lane / 4);
    const BFloat16* lower = QueryAt<kHeadDim>(args, block, first_query + block.lane / 4 + 8);
    const int column = block.lane % 4 * 2;
    const auto load = [column](const BFloat16* query, int dim) {
      return query == nullptr ? 0u : *reinterpret_cast<const uint32_t*>(query + dim + column);
    };
#pragma unroll
    for (int step = 0; step < kHeadDim / kMmaDepth; ++step) {
      const int dim = step * kMmaDepth;
      fragments[step][0] = load(upper, dim);
      fragments[step][1] = load(lower, dim);
      fragments[step][2] = load(upper, dim + 8);
      fragments[step][3] = load(lower, dim + 8);
    }
  }
};

// Writes 8 kTiles columns of one query, from `first_column` on, as the final output or as a
// partial. `half`: which two of a fragment's four values are this query's.
template <int kHeadDim, int kTiles>
__device__ inline void StoreQuery(const AttentionArgs& args, const AttentionBlock& block,
                                  int32_t query, int half, int first_column, float max, float sum,
                                  const float (&tiles)[kTiles][4]) {
  if (query >= block.query_count()) return;
  const int32_t head = block.head_of(query);
  const int32_t row = block.row_of(query);
  const int column = first_column + block.lane % 4 * 2;
  if (block.item.partial_row < 0) {
    BFloat16* out =
        args.out + (int64_t{block.item.first_row + row} * args.shape.head_count + head) * kHeadDim +
        column;
    const float inverse = InverseSum(sum);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      *reinterpret_cast<uint32_t*>(out + t * kMmaColumns) = NarrowPair(
          Normalise(tiles[t][2 * half], inverse), Normalise(tiles[t][2 * half + 1], inverse));
    }
    return;
  }
  const int64_t place = int64_t{block.item.partial_row + row} * args.shape.head_count + head;
  if (column == 0) {
    args.partial_state[2 * place] = max;
    args.partial_state[2 * place + 1] = sum;
  }
  float* output = args.partial_output + place * kHeadDim + column;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    *reinterpret_cast<float2*>(output + t * kMmaColumns) =
        make_float2(tiles[t][2 * half], tiles[t][2 * half + 1]);
  }
}

// A kernel for each head dimension and kind of item. Its blocks: (item, kv head).
struct AttentionKernel {
  using Function = void (*)(AttentionCall);
  // As functions[head_dim / 128][is_whole].
  Function functions[2][2];
  size_t shared_size_bytes[2];
  int threads;
};
// Items of at most kSmallItemQueries queries: four warps share one row tile.
AttentionKernel SmallAttention();
// Larger items: each warp has a row tile.
AttentionKernel LargeAttention();
// The same by warpgroups, of up to kWarpgroupTileQueries; compute capability 9.0 only.
AttentionKernel WarpgroupAttention();

}  // namespace selfsame::cuda
