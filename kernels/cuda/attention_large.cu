// Attention of many queries, as in prefill and verification: each warp of a block has a row tile of
// its own, and the warps share the keys and values that they load together.

#include "kernels/cuda/attention_common.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kKeyTiles = kAttentionTileKeys / kMmaColumns;  // accumulators of a tile's scores
constexpr int kTilesPerSum = kSumKeys / kMmaColumns;
static_assert(kAttentionTileQueries == kAttentionWarps * kMmaRows);

template <int kHeadDim>
struct Shared {
  KeyTile<kHeadDim> keys[kAttentionStages];
  KeyTile<kHeadDim> values[kAttentionStages];
};

using Scores = float[kKeyTiles][4];

// Softmax state and output of the 16 queries of a warp. A thread holds queries lane / 4 and 8 more;
// of each, columns 8 t + 2 (lane % 4) and the next, for every t.
template <int kHeadDim>
struct State {
  static constexpr int kOutputTiles = kHeadDim / kMmaColumns;
  float max[2];
  // One for each 16 keys of a tile, until FinishSplit leaves the whole in the first.
  float sum[2][kAttentionWarps];
  float output[kOutputTiles][4];

  __device__ void Reset() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[half] = NegativeInfinity();
      for (float& value : sum[half]) value = 0.0f;
    }
#pragma unroll
    for (auto& tile : output) {
      for (float& value : tile) value = 0.0f;
    }
  }
};

// scores = q · keysᵀ, unscaled.
template <int kHeadDim>
__device__ void Score(const Queries<kHeadDim>& queries, const AttentionBlock& block,
                      const KeyTile<kHeadDim>& tile, Scores& scores) {
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

// Turns scores into probabilities and brings max, sums and output up to the new maximum.
// `first_key` is the thread's first.
template <int kHeadDim>
__device__ void Softmax(float scale, int32_t first_key, const int32_t (&positions)[2],
                        Scores& scores, State<kHeadDim>& state) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float new_max = NegativeInfinity();
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[t][2 * half + i];
        const bool is_visible = first_key + t * kMmaColumns + i <= positions[half];
        score = is_visible ? score * scale : NegativeInfinity();
        new_max = fmaxf(new_max, score);
      }
    }
    new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 1));
    new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 2));
    new_max = fmaxf(state.max[half], new_max);
    const float reference = Reference(new_max);
    const float alpha = Exp2(state.max[half] - reference);
    state.max[half] = new_max;
#pragma unroll
    for (int part = 0; part < kAttentionWarps; ++part) {
      float sum = 0.0f;
#pragma unroll
      for (int t = part * kTilesPerSum; t < (part + 1) * kTilesPerSum; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[t][2 * half + i];
          score = Exp2(score - reference);
          sum = sum + score;
        }
      }
      state.sum[half][part] = __fmaf_rn(state.sum[half][part], alpha, sum);
    }
#pragma unroll
    for (auto& tile : state.output) {
      tile[2 * half] = tile[2 * half] * alpha;
      tile[2 * half + 1] = tile[2 * half + 1] * alpha;
    }
  }
}

// output += bf16(probabilities) · values.
template <int kHeadDim>
__device__ void AddValues(const Scores& probabilities, const AttentionBlock& block,
                          const KeyTile<kHeadDim>& tile, State<kHeadDim>& state) {
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

// Adds the partial sums of each query: of the four lanes, then of the four parts in order.
template <int kHeadDim>
__device__ void FinishSplit(State<kHeadDim>& state) {
#pragma unroll
  for (auto& parts : state.sum) {
#pragma unroll
    for (float& sum : parts) {
      sum = sum + __shfl_xor_sync(kAllLanes, sum, 1);
      sum = sum + __shfl_xor_sync(kAllLanes, sum, 2);
    }
#pragma unroll
    for (int part = 1; part < kAttentionWarps; ++part) parts[0] = parts[0] + parts[part];
  }
}

// What is kept of the splits before.
template <int kHeadDim>
struct Merged {
  float max[2] = {NegativeInfinity(), NegativeInfinity()};
  float sum[2] = {};
  float output[State<kHeadDim>::kOutputTiles][4] = {};

  __device__ void Add(const State<kHeadDim>& split) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const MergeWeights weights =
          MergeSplit(split.max[half], split.sum[half][0], max[half], sum[half]);
#pragma unroll
      for (int t = 0; t < State<kHeadDim>::kOutputTiles; ++t) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          output[t][i] = MergeOutput(split.output[t][i], output[t][i], weights);
        }
      }
    }
  }
};

// One block: one item and one kv head. kIsWhole: items with all keys, whose splits are merged in
// registers; otherwise items with one split.
template <int kHeadDim, bool kIsWhole>
__global__ void __launch_bounds__(kAttentionThreads, kIsWhole ? 2 : 3)
    LargeKernel(const __grid_constant__ AttentionArgs args, int32_t first_item, float scale) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(shared_memory);
  const AttentionBlock block(args, first_item);
  if (block.item.row_count == 0) return;
  LoadTile<kHeadDim>(args, block, block.item.first_key, shared.keys[0], shared.values[0]);
  CommitCopies();
  const int32_t first_query = block.warp * kMmaRows;
  const bool has_queries = first_query < block.query_count();
  const int32_t query[2] = {first_query + block.lane / 4, first_query + block.lane / 4 + 8};
  const int32_t positions[2] = {block.item.first_position + query[0] / block.group,
                                block.item.first_position + query[1] / block.group};
  const Queries<kHeadDim> queries(args, block, first_query);
  State<kHeadDim> split;
  Merged<kHeadDim> merged;
  split.Reset();
  int stage = 0;
  for (int32_t key = block.item.first_key; key < block.item.end_key; key += kAttentionTileKeys) {
    WaitForCopies<0>();
    __syncthreads();
    const int32_t next = key + kAttentionTileKeys;
    if (next < block.item.end_key) {
      LoadTile<kHeadDim>(args, block, next, shared.keys[stage ^ 1], shared.values[stage ^ 1]);
      CommitCopies();
    }
    if (has_queries) {
      Scores scores;
      Score(queries, block, shared.keys[stage], scores);
      Softmax(scale, key + block.lane % 4 * 2, positions, scores, split);
      AddValues(scores, block, shared.values[stage], split);
      if (kIsWhole && (next % args.split_keys == 0 || next >= block.item.end_key)) {
        FinishSplit(split);
        merged.Add(split);
        split.Reset();
      }
    }
    stage ^= 1;
  }
  if (!has_queries) return;
  if constexpr (!kIsWhole) FinishSplit(split);
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

template <int kHeadDim, bool kIsWhole>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(LargeKernel<kHeadDim, kIsWhole>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(Shared<kHeadDim>));
}

template <int kHeadDim>
void Launch(const AttentionArgs& args, const AttentionRange& range, cudaStream_t stream) {
  const dim3 grid(range.item_count, args.shape.kv_head_count);
  const auto kernel = range.is_whole ? LargeKernel<kHeadDim, true> : LargeKernel<kHeadDim, false>;
  kernel<<<grid, kAttentionThreads, sizeof(Shared<kHeadDim>), stream>>>(args, range.first_item,
                                                                        AttentionScale(kHeadDim));
}

}  // namespace

cudaError_t PrepareLargeAttention() {
  for (const cudaError_t error :
       {Prepare<64, false>(), Prepare<64, true>(), Prepare<128, false>(), Prepare<128, true>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

void RunLargeAttention(const AttentionArgs& args, const AttentionRange& range,
                       cudaStream_t stream) {
  if (args.shape.head_dim == 64) return Launch<64>(args, range, stream);
  Launch<128>(args, range, stream);
}

}  // namespace selfsame::cuda
