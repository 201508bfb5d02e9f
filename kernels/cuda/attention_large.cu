// Attention of many queries, as in prefill and verification: each warp of a block has a row tile of
// its own, and the warps share the keys and values that they load together.

#include "kernels/cuda/attention_rows.cuh"

namespace selfsame::cuda {
namespace {

static_assert(kAttentionTileQueries == kAttentionWarps * kMmaRows);

template <int kHeadDim>
struct Shared {
  KeyTile<kHeadDim> keys[kAttentionStages];
  KeyTile<kHeadDim> values[kAttentionStages];
};

// scores = q · keysᵀ, unscaled.
template <int kHeadDim>
__device__ void Score(const Queries<kHeadDim>& queries, const AttentionBlock& block,
                      const KeyTile<kHeadDim>& tile, RowScores& scores) {
  const int row = block.lane / 16 * 8 + block.lane % 8;
  const BFloat16* keys = tile.data + row * KeyTile<kHeadDim>::kPitch + block.lane / 8 % 2 * 8;
#pragma unroll
  for (auto& values : scores) {
    for (float& value : values) value = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / kMmaDepth; ++step) {
#pragma unroll
    for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
      uint32_t k[4];
      LoadMatrices(keys + pair * 16 * KeyTile<kHeadDim>::kPitch + step * kMmaDepth, k);
      MultiplyAdd(queries.fragments[step], k[0], k[1], scores[2 * pair]);
      MultiplyAdd(queries.fragments[step], k[2], k[3], scores[2 * pair + 1]);
    }
  }
}

// output += bf16(probabilities) · values.
template <int kHeadDim>
__device__ void AddValues(const RowScores& probabilities, const AttentionBlock& block,
                          const KeyTile<kHeadDim>& tile, RowState<kHeadDim>& state) {
  const int row = block.lane / 8 % 2 * 8 + block.lane % 8;
  const BFloat16* values = tile.data + row * KeyTile<kHeadDim>::kPitch + block.lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kAttentionTileKeys / kMmaDepth; ++step) {
    const auto& left = probabilities[2 * step];
    const auto& right = probabilities[2 * step + 1];
    const uint32_t p[4] = {NarrowPair(left[0], left[1]), NarrowPair(left[2], left[3]),
                           NarrowPair(right[0], right[1]), NarrowPair(right[2], right[3])};
#pragma unroll
    for (int pair = 0; pair < kHeadDim / 16; ++pair) {
      uint32_t v[4];
      LoadMatricesTransposed(values + step * kMmaDepth * KeyTile<kHeadDim>::kPitch + pair * 16, v);
      MultiplyAdd(p, v[0], v[1], state.output[2 * pair]);
      MultiplyAdd(p, v[2], v[3], state.output[2 * pair + 1]);
    }
  }
}

// One block: one item and one kv head. kIsWhole: items with all keys, whose splits are merged in
// registers; otherwise items with one split.
template <int kHeadDim, bool kIsWhole>
__global__ void __launch_bounds__(kAttentionThreads, kIsWhole ? 2 : 3)
    LargeKernel(const __grid_constant__ AttentionCall call) {
  const AttentionArgs& args = call.args;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(shared_memory);
  const AttentionBlock block(call);
  const int thread = static_cast<int>(threadIdx.x);
  if (block.item.row_count == 0) return;
  TilePages pages;
  pages.Load(args, block, block.item.first_key);
  LoadTile<kHeadDim>(args, block, thread, block.item.first_key, pages, shared.keys[0],
                     shared.values[0]);
  CommitCopies();
  const int32_t first_query = block.warp * kMmaRows;
  const bool has_queries = first_query < block.query_count();
  const int32_t query[2] = {first_query + block.lane / 4, first_query + block.lane / 4 + 8};
  const int32_t positions[2] = {block.position_of(query[0]), block.position_of(query[1])};
  const Queries<kHeadDim> queries(args, block, first_query);
  RowState<kHeadDim> split;
  MergedRows<kHeadDim> merged;
  split.Reset();
  int stage = 0;
  for (int32_t key = block.item.first_key; key < block.item.end_key; key += kAttentionTileKeys) {
    WaitForCopies<0>();
    __syncthreads();
    const int32_t next = key + kAttentionTileKeys;
    if (next < block.item.end_key) {
      pages.Load(args, block, next);
      LoadTile<kHeadDim>(args, block, thread, next, pages, shared.keys[stage ^ 1],
                         shared.values[stage ^ 1]);
      CommitCopies();
    }
    if (has_queries) {
      RowScores scores;
      Score(queries, block, shared.keys[stage], scores);
      if (next > block.item.first_position + 1)
        MaskRows(key + block.lane % 4 * 2, positions, scores);
      float alpha[2];
      RowSoftmax(call.scale, scores, split, alpha);
      ScaleOutput(alpha, split);
      AddValues(scores, block, shared.values[stage], split);
      if (kIsWhole && (next % args.split_keys == 0 || next >= block.item.end_key)) {
        FinishRows(split);
        merged.Add(call.scale, split);
        split.Reset();
      }
    }
    stage ^= 1;
  }
  if (!has_queries) return;
  if constexpr (!kIsWhole) FinishRows(split);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (kIsWhole) {
      StoreQuery<kHeadDim>(args, block, query[half], half, 0, merged.max[half], merged.sum[half],
                           merged.output);
    } else {
      StoreQuery<kHeadDim>(args, block, query[half], half, 0, split.max[half], split.sum[half][0],
                           split.output);
    }
  }
}

}  // namespace

AttentionKernel LargeAttention() {
  return {.functions = {{LargeKernel<64, false>, LargeKernel<64, true>},
                        {LargeKernel<128, false>, LargeKernel<128, true>}},
          .shared_size_bytes = {sizeof(Shared<64>), sizeof(Shared<128>)},
          .threads = kAttentionThreads};
}

}  // namespace selfsame::cuda
