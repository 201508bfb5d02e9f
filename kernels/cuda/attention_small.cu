// Attention of few queries, as in decoding: the four warps of a block share one row tile. Each
// scores 16 of a tile's 64 keys, and adds up a quarter of the dimensions over all of them.

#include "kernels/cuda/attention_common.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kScoreTiles = kSumKeys / kMmaColumns;

template <int kHeadDim>
struct Shared {
  KeyTile<kHeadDim> keys[kAttentionStages];
  KeyTile<kHeadDim> values[kAttentionStages];
  Tile<kMmaRows, kAttentionTileKeys> probabilities;
  float max[kAttentionWarps][kMmaRows];
  float sum[kAttentionWarps][kMmaRows];
};

using Scores = float[kScoreTiles][4];

// Softmax state and a warp's quarter of the output. A thread holds queries lane / 4 and 8 more; of
// each, columns 8 t + 2 (lane % 4) and the next of the quarter.
template <int kHeadDim>
struct State {
  static constexpr int kOutputTiles = kHeadDim / kAttentionWarps / kMmaColumns;
  float max[2];
  float sum[2];  // of the warp's keys only, until FinishSplit
  float output[kOutputTiles][4];

  __device__ void Reset() {
    for (int half = 0; half < 2; ++half) {
      max[half] = NegativeInfinity();
      sum[half] = 0.0f;
    }
#pragma unroll
    for (auto& tile : output) {
      for (float& value : tile) value = 0.0f;
    }
  }
};

// scores = q · keysᵀ, unscaled, for the warp's 16 keys.
template <int kHeadDim>
__device__ void Score(const Queries<kHeadDim>& queries, const AttentionBlock& block,
                      const KeyTile<kHeadDim>& tile, Scores& scores) {
  const int row = block.warp * kSumKeys + block.lane / 16 * 8 + block.lane % 8;
  const BFloat16* keys = tile.data + row * KeyTile<kHeadDim>::kPitch + block.lane / 8 % 2 * 8;
#pragma unroll
  for (auto& values : scores) {
    for (float& value : values) value = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / kMmaDepth; ++step) {
    uint32_t k[4];
    LoadMatrices(keys + step * kMmaDepth, k);
    MultiplyAdd(queries.fragments[step], k[0], k[1], scores[0]);
    MultiplyAdd(queries.fragments[step], k[2], k[3], scores[1]);
  }
}

// Masks scores, and leaves the maximum over the warp's keys in shared memory. `first_key` is the
// thread's first.
template <int kHeadDim>
__device__ void MaskAndMax(int32_t first_key, const int32_t (&positions)[2],
                           const AttentionBlock& block, Scores& scores, Shared<kHeadDim>& shared) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float max = NegativeInfinity();
#pragma unroll
    for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[t][2 * half + i];
        const bool is_visible = first_key + t * kMmaColumns + i <= positions[half];
        score = is_visible ? score : NegativeInfinity();
        max = fmaxf(max, score);
      }
    }
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    if (block.lane % 4 == 0) shared.max[block.warp][block.lane / 4 + 8 * half] = max;
  }
}

// Turns scores into probabilities, in shared memory, and brings max, sum and output up to the new
// maximum.
template <int kHeadDim>
__device__ void Softmax(float scale, const AttentionBlock& block, const Scores& scores,
                        Shared<kHeadDim>& shared, State<kHeadDim>& state) {
  constexpr int kPitch = decltype(shared.probabilities)::kPitch;
  const int column = block.warp * kSumKeys + block.lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = block.lane / 4 + 8 * half;
    float new_max = state.max[half];
#pragma unroll
    for (int warp = 0; warp < kAttentionWarps; ++warp) {
      new_max = fmaxf(new_max, shared.max[warp][row]);
    }
    const float reference = Reference(new_max, scale);
    const float alpha = Rescale(state.max[half], scale, reference);
    float sum = 0.0f;
#pragma unroll
    for (int t = 0; t < kScoreTiles; ++t) {
      const float left = Probability(scores[t][2 * half], scale, reference);
      const float right = Probability(scores[t][2 * half + 1], scale, reference);
      sum = sum + left;
      sum = sum + right;
      *reinterpret_cast<uint32_t*>(shared.probabilities.data + row * kPitch + column +
                                   t * kMmaColumns) = NarrowPair(left, right);
    }
    state.max[half] = new_max;
    state.sum[half] = __fmaf_rn(state.sum[half], alpha, sum);
#pragma unroll
    for (auto& tile : state.output) {
      tile[2 * half] = tile[2 * half] * alpha;
      tile[2 * half + 1] = tile[2 * half + 1] * alpha;
    }
  }
}

// output += bf16(probabilities) · values, for the warp's dimensions.
template <int kHeadDim>
__device__ void AddValues(const AttentionBlock& block, const KeyTile<kHeadDim>& tile,
                          const Shared<kHeadDim>& shared, State<kHeadDim>& state) {
  constexpr int kPairs = State<kHeadDim>::kOutputTiles / 2;
  constexpr int kPitch = decltype(shared.probabilities)::kPitch;
  const int row = block.lane / 8 % 2 * 8 + block.lane % 8;
  const int dim = block.warp * (kHeadDim / kAttentionWarps) + block.lane / 16 * 8;
  const BFloat16* values = tile.data + row * KeyTile<kHeadDim>::kPitch + dim;
  const BFloat16* probabilities =
      shared.probabilities.data + block.lane % 16 * kPitch + block.lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kAttentionTileKeys / kMmaDepth; ++step) {
    uint32_t p[4];
    LoadMatrices(probabilities + step * kMmaDepth, p);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t v[4];
      LoadMatricesTransposed(values + step * kMmaDepth * KeyTile<kHeadDim>::kPitch + pair * 16, v);
      MultiplyAdd(p, v[0], v[1], state.output[2 * pair]);
      MultiplyAdd(p, v[2], v[3], state.output[2 * pair + 1]);
    }
  }
}

// Adds the partial sums of each query: of the four lanes, then of the four warps in order. All
// threads of the block call.
template <int kHeadDim>
__device__ void FinishSplit(const AttentionBlock& block, Shared<kHeadDim>& shared,
                            State<kHeadDim>& state) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half];
    sum = sum + __shfl_xor_sync(kAllLanes, sum, 1);
    sum = sum + __shfl_xor_sync(kAllLanes, sum, 2);
    if (block.lane % 4 == 0) shared.sum[block.warp][block.lane / 4 + 8 * half] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = block.lane / 4 + 8 * half;
    float sum = shared.sum[0][row];
#pragma unroll
    for (int warp = 1; warp < kAttentionWarps; ++warp) sum = sum + shared.sum[warp][row];
    state.sum[half] = sum;
  }
}

template <int kHeadDim>
__device__ void MergeState(float scale, const State<kHeadDim>& split, State<kHeadDim>& merged) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const MergeWeights weights =
        MergeSplit(scale, split.max[half], split.sum[half], merged.max[half], merged.sum[half]);
#pragma unroll
    for (int t = 0; t < State<kHeadDim>::kOutputTiles; ++t) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        merged.output[t][i] = MergeOutput(split.output[t][i], merged.output[t][i], weights);
      }
    }
  }
}

template <int kHeadDim>
__device__ void ZeroRows(const AttentionArgs& args, const AttentionBlock& block) {
  const int32_t width = block.group * kHeadDim;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kVectorElements;
       i < block.item.row_count * width; i += kAttentionThreads * kVectorElements) {
    BFloat16* out = args.out +
                    int64_t{block.item.first_row + i / width} * args.shape.head_count * kHeadDim +
                    static_cast<int32_t>(blockIdx.y) * width + i % width;
    *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
  }
}

// One block: one item and one kv head. kIsWhole: items with all keys, whose splits are merged in
// registers; otherwise items with one split.
template <int kHeadDim, bool kIsWhole>
__global__ void __launch_bounds__(kAttentionThreads, 3)
    SmallKernel(const __grid_constant__ AttentionCall call) {
  const AttentionArgs& args = call.args;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(shared_memory);
  const AttentionBlock block(call);
  const int thread = static_cast<int>(threadIdx.x);
  if (block.item.first_position < 0) return ZeroRows<kHeadDim>(args, block);

  TilePages pages;
  pages.Load(args, block, block.item.first_key);
  LoadTile<kHeadDim>(args, block, thread, block.item.first_key, pages, shared.keys[0],
                     shared.values[0]);
  CommitCopies();
  pages.Load(args, block, block.item.first_key + kAttentionTileKeys);
  const int32_t positions[2] = {block.position_of(block.lane / 4),
                                block.position_of(block.lane / 4 + 8)};
  const Queries<kHeadDim> queries(args, block, 0);
  State<kHeadDim> split;
  State<kHeadDim> merged;
  split.Reset();
  if constexpr (kIsWhole) merged.Reset();
  int stage = 0;
  for (int32_t key = block.item.first_key; key < block.item.end_key; key += kAttentionTileKeys) {
    WaitForCopies<0>();
    __syncthreads();
    const int32_t next = key + kAttentionTileKeys;
    if (next < block.item.end_key) {
      LoadTile<kHeadDim>(args, block, thread, next, pages, shared.keys[stage ^ 1],
                         shared.values[stage ^ 1]);
      CommitCopies();
      pages.Load(args, block, next + kAttentionTileKeys);
    }
    Scores scores;
    Score(queries, block, shared.keys[stage], scores);
    MaskAndMax(key + block.warp * kSumKeys + block.lane % 4 * 2, positions, block, scores, shared);
    __syncthreads();
    Softmax(call.scale, block, scores, shared, split);
    __syncthreads();
    AddValues(block, shared.values[stage], shared, split);
    if (kIsWhole && (next % args.split_keys == 0 || next >= block.item.end_key)) {
      FinishSplit(block, shared, split);
      MergeState(call.scale, split, merged);
      split.Reset();
    }
    stage ^= 1;
  }
  if constexpr (!kIsWhole) FinishSplit(block, shared, split);
  const State<kHeadDim>& state = kIsWhole ? merged : split;
  const int column = block.warp * (kHeadDim / kAttentionWarps);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    StoreQuery<kHeadDim>(args, block, block.lane / 4 + 8 * half, half, column, state.max[half],
                         state.sum[half], state.output);
  }
}

}  // namespace

AttentionKernel SmallAttention() {
  return {.functions = {{SmallKernel<64, false>, SmallKernel<64, true>},
                        {SmallKernel<128, false>, SmallKernel<128, true>}},
          .shared_size_bytes = {sizeof(Shared<64>), sizeof(Shared<128>)},
          .threads = kAttentionThreads};
}

}  // namespace selfsame::cuda
