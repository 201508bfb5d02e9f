#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kStages = 2;
constexpr int kMergeWarps = 4;
// Row tiles, of 16 queries, of the two sizes of item.
constexpr int kSmallTiles = 1;
constexpr int kLargeTiles = kAttentionTileQueries / kMmaRows;
// A warp scores 16 of a tile's 64 keys, and adds up a quarter of the dimensions over all of them.
constexpr int kWarpKeys = kAttentionTileKeys / kWarps;
constexpr int kScoreTiles = kWarpKeys / kMmaColumns;
static_assert(kLargeTiles * kMmaRows == kAttentionTileQueries && kWarpKeys == kMmaDepth);

// A tile of [kRows][kWidth] in shared memory. Rows are padded by 16 bytes, so that the eight rows a
// matrix load touches lie in different banks.
template <int kRows, int kWidth>
struct Tile {
  static constexpr int kPitch = kWidth + kVectorElements;
  BFloat16 data[kRows * kPitch];
};
template <int kHeadDim>
using KeyTile = Tile<kAttentionTileKeys, kHeadDim>;

template <int kHeadDim, int kTiles>
struct Shared {
  KeyTile<kHeadDim> keys[kStages];
  KeyTile<kHeadDim> values[kStages];
  Tile<kTiles * kMmaRows, kAttentionTileKeys> probabilities;
  float max[kWarps][kTiles * kMmaRows];
  float sum[kWarps][kTiles * kMmaRows];
  // Large items reload their queries for every tile; small ones keep them in registers.
  Tile<kTiles == kSmallTiles ? 1 : kTiles * kMmaRows, kHeadDim> queries;
};

template <int kTiles>
using Scores = float[kTiles][kScoreTiles][4];

// Softmax state and a warp's quarter of the output. A thread holds queries 16 r + lane / 4 and 8
// more of every row tile r; of each, columns 8 t + 2 (lane % 4) and the next of the warp's quarter.
template <int kHeadDim, int kTiles>
struct State {
  static constexpr int kOutputTiles = kHeadDim / kWarps / kMmaColumns;
  float max[kTiles][2];
  float sum[kTiles][2];  // of the warp's keys only, until FinishSplit
  float output[kTiles][kOutputTiles][4];

  __device__ void Reset() {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      for (int half = 0; half < 2; ++half) {
        max[r][half] = NegativeInfinity();
        sum[r][half] = 0.0f;
      }
      for (auto& tile : output[r]) {
        for (float& value : tile) value = 0.0f;
      }
    }
  }
};

// What the threads of a block know of their item.
struct Block {
  AttentionItem item;
  int32_t group;  // query heads of a kv head
  int warp;
  int lane;

  __device__ int32_t query_count() const { return item.row_count * group; }
  __device__ int32_t head_of(int32_t query) const {
    return static_cast<int32_t>(blockIdx.y) * group + query % group;
  }
};

// The arguments are never positive. Exact: 2^0 = 1, 2^-inf = 0.
__device__ inline float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// What to subtract from scores: the maximum, or 0 where no key has been seen.
__device__ inline float Reference(float max) { return max == NegativeInfinity() ? 0.0f : max; }

// Adds a split's max and sum to those of the splits before; the weights say how outputs combine.
struct MergeWeights {
  float before;
  float now;
};
__device__ inline MergeWeights MergeSplit(float split_max, float split_sum, float& max,
                                          float& sum) {
  const float new_max = fmaxf(max, split_max);
  const float reference = Reference(new_max);
  const MergeWeights weights = {Exp2(max - reference), Exp2(split_max - reference)};
  sum = __fmaf_rn(split_sum, weights.now, sum * weights.before);
  max = new_max;
  return weights;
}
__device__ inline float MergeOutput(float split_output, float output, MergeWeights weights) {
  return __fmaf_rn(split_output, weights.now, output * weights.before);
}
// Adding 0 makes -0 into 0: which of the two a sum of zeros gives may depend on masked keys.
__device__ inline float Normalise(float output, float sum) { return __fdiv_rn(output, sum) + 0.0f; }

// Starts copying a tile's keys and values, at positions [first_key, first_key + 64) below the
// item's end; zeros stand for the rest.
template <int kHeadDim>
__device__ void LoadTile(const AttentionArgs& args, const Block& block, int32_t first_key,
                         KeyTile<kHeadDim>& keys, KeyTile<kHeadDim>& values) {
  constexpr int kChunks = kHeadDim / kVectorElements;
  const int64_t head_size = int64_t{kKvBlockTokens} * kHeadDim;
  const int64_t kind_size = head_size * args.shape.kv_head_count;
  const int32_t* table = args.block_tables + block.item.block_table;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kAttentionTileKeys * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int dim = i % kChunks * kVectorElements;
    const int32_t key = first_key + row;
    const bool is_present = key < block.item.end_key;
    const BFloat16* source = args.kv;
    if (is_present) {
      source += table[key / kKvBlockTokens] * 2 * kind_size + blockIdx.y * head_size +
                key % kKvBlockTokens * kHeadDim + dim;
    }
    const int place = row * KeyTile<kHeadDim>::kPitch + dim;
    CopyAsync(keys.data + place, source, is_present);
    CopyAsync(values.data + place, is_present ? source + kind_size : source, is_present);
  }
}

// The address of a query, numbered row * group + head within the item; null past the item's end.
template <int kHeadDim>
__device__ const BFloat16* QueryAt(const AttentionArgs& args, const Block& block, int32_t query) {
  if (query >= block.query_count()) return nullptr;
  const int64_t width = int64_t{args.shape.head_count + 2 * args.shape.kv_head_count} * kHeadDim;
  return args.qkv + (block.item.first_row + query / block.group) * width +
         block.head_of(query) * kHeadDim;
}

// The queries of an item: in registers for a small one, in shared memory for a large one.
template <int kHeadDim, int kTiles>
class Queries {
 public:
  static constexpr int kSteps = kHeadDim / kMmaDepth;

  __device__ void Load(const AttentionArgs& args, const Block& block,
                       Shared<kHeadDim, kTiles>& shared) {
    if constexpr (kTiles == kSmallTiles) {
      const BFloat16* upper = QueryAt<kHeadDim>(args, block, block.lane / 4);
      const BFloat16* lower = QueryAt<kHeadDim>(args, block, block.lane / 4 + 8);
      const int column = block.lane % 4 * 2;
      const auto load = [column](const BFloat16* query, int dim) {
        return query == nullptr ? 0u : *reinterpret_cast<const uint32_t*>(query + dim + column);
      };
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int dim = step * kMmaDepth;
        fragments_[step][0] = load(upper, dim);
        fragments_[step][1] = load(lower, dim);
        fragments_[step][2] = load(upper, dim + 8);
        fragments_[step][3] = load(lower, dim + 8);
      }
    } else {
      constexpr int kChunks = kHeadDim / kVectorElements;
      for (int i = static_cast<int>(threadIdx.x); i < kTiles * kMmaRows * kChunks; i += kThreads) {
        const BFloat16* query = QueryAt<kHeadDim>(args, block, i / kChunks);
        const int dim = i % kChunks * kVectorElements;
        CopyAsync(shared.queries.data + i / kChunks * decltype(shared.queries)::kPitch + dim,
                  query == nullptr ? args.qkv : query + dim, query != nullptr);
      }
    }
  }

  __device__ void Fragment(const Shared<kHeadDim, kTiles>& shared, int lane, int row_tile, int step,
                           uint32_t (&out)[4]) const {
    if constexpr (kTiles == kSmallTiles) {
      for (int i = 0; i < 4; ++i) out[i] = fragments_[step][i];
    } else {
      const int row = row_tile * kMmaRows + lane % 16;
      LoadMatrices(shared.queries.data + row * decltype(shared.queries)::kPitch + step * kMmaDepth +
                       lane / 16 * 8,
                   out);
    }
  }

 private:
  uint32_t fragments_[kTiles == kSmallTiles ? kSteps : 1][4];
};

// scores = q · keysᵀ, unscaled, for the warp's 16 keys.
template <int kHeadDim, int kTiles>
__device__ void Score(const Queries<kHeadDim, kTiles>& queries, const Block& block, int row_tiles,
                      int stage, const Shared<kHeadDim, kTiles>& shared, Scores<kTiles>& scores) {
  const int row = block.warp * kWarpKeys + block.lane / 16 * 8 + block.lane % 8;
  const BFloat16* keys =
      shared.keys[stage].data + row * KeyTile<kHeadDim>::kPitch + block.lane / 8 % 2 * 8;
#pragma unroll
  for (auto& row_tile : scores) {
    for (auto& tile : row_tile) {
      for (float& value : tile) value = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / kMmaDepth; ++step) {
    uint32_t k[4];
    LoadMatrices(keys + step * kMmaDepth, k);
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      if (r >= row_tiles) continue;
      uint32_t q[4];
      queries.Fragment(shared, block.lane, r, step, q);
      MultiplyAdd(q, k[0], k[1], scores[r][0]);
      MultiplyAdd(q, k[2], k[3], scores[r][1]);
    }
  }
}

// Scales and masks scores, and leaves the maximum over the warp's keys in shared memory.
// `first_key` is the thread's first.
template <int kHeadDim, int kTiles>
__device__ void ScaleAndMax(float scale, int32_t first_key, const int32_t (&positions)[kTiles][2],
                            const Block& block, int row_tiles, Scores<kTiles>& scores,
                            Shared<kHeadDim, kTiles>& shared) {
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    if (r >= row_tiles) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = NegativeInfinity();
#pragma unroll
      for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[r][t][2 * half + i];
          const bool is_visible = first_key + t * kMmaColumns + i <= positions[r][half];
          score = is_visible ? score * scale : NegativeInfinity();
          max = fmaxf(max, score);
        }
      }
      max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
      if (block.lane % 4 == 0) {
        shared.max[block.warp][r * kMmaRows + block.lane / 4 + 8 * half] = max;
      }
    }
  }
}

// Turns scores into probabilities, in shared memory, and brings max, sum and output up to the new
// maximum.
template <int kHeadDim, int kTiles>
__device__ void Softmax(const Block& block, int row_tiles, const Scores<kTiles>& scores,
                        Shared<kHeadDim, kTiles>& shared, State<kHeadDim, kTiles>& state) {
  constexpr int kPitch = decltype(shared.probabilities)::kPitch;
  const int column = block.warp * kWarpKeys + block.lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    if (r >= row_tiles) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = r * kMmaRows + block.lane / 4 + 8 * half;
      float new_max = state.max[r][half];
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) new_max = fmaxf(new_max, shared.max[warp][row]);
      const float reference = Reference(new_max);
      const float alpha = Exp2(state.max[r][half] - reference);
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < kScoreTiles; ++t) {
        const float left = Exp2(scores[r][t][2 * half] - reference);
        const float right = Exp2(scores[r][t][2 * half + 1] - reference);
        sum = sum + left;
        sum = sum + right;
        *reinterpret_cast<uint32_t*>(shared.probabilities.data + row * kPitch + column +
                                     t * kMmaColumns) = NarrowPair(left, right);
      }
      state.max[r][half] = new_max;
      state.sum[r][half] = __fmaf_rn(state.sum[r][half], alpha, sum);
#pragma unroll
      for (auto& tile : state.output[r]) {
        tile[2 * half] = tile[2 * half] * alpha;
        tile[2 * half + 1] = tile[2 * half + 1] * alpha;
      }
    }
  }
}

// output += bf16(probabilities) · values, for the warp's dimensions.
template <int kHeadDim, int kTiles>
__device__ void AddValues(const Block& block, int row_tiles, int stage,
                          const Shared<kHeadDim, kTiles>& shared, State<kHeadDim, kTiles>& state) {
  constexpr int kPairs = State<kHeadDim, kTiles>::kOutputTiles / 2;
  constexpr int kPitch = decltype(shared.probabilities)::kPitch;
  const int row = block.lane / 8 % 2 * 8 + block.lane % 8;
  const int dim = block.warp * (kHeadDim / kWarps) + block.lane / 16 * 8;
  const BFloat16* values = shared.values[stage].data + row * KeyTile<kHeadDim>::kPitch + dim;
  const BFloat16* probabilities =
      shared.probabilities.data + block.lane % 16 * kPitch + block.lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kAttentionTileKeys / kMmaDepth; ++step) {
    uint32_t v[kPairs][4];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      LoadMatricesTransposed(values + step * kMmaDepth * KeyTile<kHeadDim>::kPitch + pair * 16,
                             v[pair]);
    }
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      if (r >= row_tiles) continue;
      uint32_t p[4];
      LoadMatrices(probabilities + r * kMmaRows * kPitch + step * kMmaDepth, p);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        MultiplyAdd(p, v[pair][0], v[pair][1], state.output[r][2 * pair]);
        MultiplyAdd(p, v[pair][2], v[pair][3], state.output[r][2 * pair + 1]);
      }
    }
  }
}

// Adds the partial sums of each query: of the four lanes, then of the four warps in order. All
// threads of the block call.
template <int kHeadDim, int kTiles>
__device__ void FinishSplit(const Block& block, int row_tiles, Shared<kHeadDim, kTiles>& shared,
                            State<kHeadDim, kTiles>& state) {
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    if (r >= row_tiles) continue;
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[r][half];
      sum = sum + __shfl_xor_sync(kAllLanes, sum, 1);
      sum = sum + __shfl_xor_sync(kAllLanes, sum, 2);
      const int row = r * kMmaRows + block.lane / 4 + 8 * half;
      if (block.lane % 4 == 0) shared.sum[block.warp][row] = sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    if (r >= row_tiles) continue;
    for (int half = 0; half < 2; ++half) {
      const int row = r * kMmaRows + block.lane / 4 + 8 * half;
      float sum = shared.sum[0][row];
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) sum = sum + shared.sum[warp][row];
      state.sum[r][half] = sum;
    }
  }
}

template <int kHeadDim, int kTiles>
__device__ void MergeState(const State<kHeadDim, kTiles>& split, State<kHeadDim, kTiles>& merged) {
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const MergeWeights weights = MergeSplit(split.max[r][half], split.sum[r][half],
                                              merged.max[r][half], merged.sum[r][half]);
#pragma unroll
      for (int t = 0; t < State<kHeadDim, kTiles>::kOutputTiles; ++t) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          merged.output[r][t][i] =
              MergeOutput(split.output[r][t][i], merged.output[r][t][i], weights);
        }
      }
    }
  }
}

// Writes the warp's dimensions of one query's final output, or of its partial.
template <int kHeadDim, int kTiles>
__device__ void StoreQuery(const AttentionArgs& args, const Block& block, int row_tile, int half,
                           const State<kHeadDim, kTiles>& state) {
  constexpr int kOutputTiles = State<kHeadDim, kTiles>::kOutputTiles;
  const int32_t query = row_tile * kMmaRows + block.lane / 4 + 8 * half;
  if (query >= block.query_count()) return;
  const int32_t head = block.head_of(query);
  const int32_t row = query / block.group;
  const int column = block.warp * (kHeadDim / kWarps) + block.lane % 4 * 2;
  const float sum = state.sum[row_tile][half];
  const auto& tiles = state.output[row_tile];
  if (block.item.partial_row < 0) {
    BFloat16* out =
        args.out + (int64_t{block.item.first_row + row} * args.shape.head_count + head) * kHeadDim +
        column;
#pragma unroll
    for (int t = 0; t < kOutputTiles; ++t) {
      *reinterpret_cast<uint32_t*>(out + t * kMmaColumns) =
          NarrowPair(Normalise(tiles[t][2 * half], sum), Normalise(tiles[t][2 * half + 1], sum));
    }
    return;
  }
  const int64_t place = int64_t{block.item.partial_row + row} * args.shape.head_count + head;
  if (column == 0) {
    args.partial_state[2 * place] = state.max[row_tile][half];
    args.partial_state[2 * place + 1] = sum;
  }
  float* output = args.partial_output + place * kHeadDim + column;
#pragma unroll
  for (int t = 0; t < kOutputTiles; ++t) {
    *reinterpret_cast<float2*>(output + t * kMmaColumns) =
        make_float2(tiles[t][2 * half], tiles[t][2 * half + 1]);
  }
}

template <int kHeadDim>
__device__ void ZeroRows(const AttentionArgs& args, const Block& block) {
  const int32_t width = block.group * kHeadDim;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kVectorElements;
       i < block.item.row_count * width; i += kThreads * kVectorElements) {
    BFloat16* out = args.out +
                    int64_t{block.item.first_row + i / width} * args.shape.head_count * kHeadDim +
                    static_cast<int32_t>(blockIdx.y) * width + i % width;
    *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
  }
}

// One block: one item and one kv head. kIsWhole: items with all keys, whose splits are merged in
// registers; otherwise items with one split.
template <int kHeadDim, int kTiles, bool kIsWhole>
__global__ void __launch_bounds__(kThreads, kTiles == kSmallTiles ? 3 : 2)
    AttentionKernel(const __grid_constant__ AttentionArgs args, int32_t first_item, float scale) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim, kTiles>*>(shared_memory);
  const Block block = {args.items[first_item + static_cast<int32_t>(blockIdx.x)],
                       args.shape.head_count / args.shape.kv_head_count,
                       static_cast<int>(threadIdx.x) / kWarpSize,
                       static_cast<int>(threadIdx.x) % kWarpSize};
  if (block.item.first_position < 0) return ZeroRows<kHeadDim>(args, block);

  const int row_tiles = (block.query_count() + kMmaRows - 1) / kMmaRows;
  int32_t positions[kTiles][2];
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    for (int half = 0; half < 2; ++half) {
      const int32_t query = r * kMmaRows + block.lane / 4 + 8 * half;
      positions[r][half] = block.item.first_position + query / block.group;
    }
  }
  Queries<kHeadDim, kTiles> queries;
  queries.Load(args, block, shared);
  State<kHeadDim, kTiles> split;
  State<kHeadDim, kTiles> merged;
  split.Reset();
  if constexpr (kIsWhole) merged.Reset();

  LoadTile<kHeadDim>(args, block, block.item.first_key, shared.keys[0], shared.values[0]);
  CommitCopies();
  int stage = 0;
  for (int32_t key = block.item.first_key; key < block.item.end_key; key += kAttentionTileKeys) {
    WaitForCopies<0>();
    __syncthreads();
    const int32_t next = key + kAttentionTileKeys;
    if (next < block.item.end_key) {
      LoadTile<kHeadDim>(args, block, next, shared.keys[stage ^ 1], shared.values[stage ^ 1]);
      CommitCopies();
    }
    Scores<kTiles> scores;
    Score(queries, block, row_tiles, stage, shared, scores);
    ScaleAndMax(scale, key + block.warp * kWarpKeys + block.lane % 4 * 2, positions, block,
                row_tiles, scores, shared);
    __syncthreads();
    Softmax(block, row_tiles, scores, shared, split);
    __syncthreads();
    AddValues(block, row_tiles, stage, shared, split);
    if (kIsWhole && (next % args.split_keys == 0 || next >= block.item.end_key)) {
      FinishSplit(block, row_tiles, shared, split);
      MergeState(split, merged);
      split.Reset();
    }
    stage ^= 1;
  }
  if constexpr (!kIsWhole) FinishSplit(block, row_tiles, shared, split);
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    for (int half = 0; half < 2; ++half) {
      StoreQuery(args, block, r, half, kIsWhole ? merged : split);
    }
  }
}

// One warp: one row and head; lane l has dimensions l * head_dim / 32 and on.
template <int kHeadDim>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    MergeKernel(const __grid_constant__ AttentionArgs args) {
  constexpr int kLaneDims = kHeadDim / kWarpSize;
  const AttentionMerge merge = args.merges[blockIdx.x];
  const int32_t head = static_cast<int32_t>(blockIdx.y) * kMergeWarps +
                       static_cast<int32_t>(threadIdx.x) / kWarpSize;
  if (head >= args.shape.head_count) return;
  const int dim = threadIdx.x % kWarpSize * kLaneDims;
  float max = NegativeInfinity();
  float sum = 0.0f;
  float output[kLaneDims] = {};
  for (int32_t split = 0; split < merge.split_count; ++split) {
    const int64_t place =
        int64_t{merge.partial_row + split * merge.stride} * args.shape.head_count + head;
    const float* values = args.partial_output + place * kHeadDim + dim;
    const MergeWeights weights =
        MergeSplit(args.partial_state[2 * place], args.partial_state[2 * place + 1], max, sum);
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) output[i] = MergeOutput(values[i], output[i], weights);
  }
  BFloat16* out = args.out + (int64_t{merge.row} * args.shape.head_count + head) * kHeadDim + dim;
#pragma unroll
  for (int i = 0; i < kLaneDims; i += 2) {
    *reinterpret_cast<uint32_t*>(out + i) =
        NarrowPair(Normalise(output[i], sum), Normalise(output[i + 1], sum));
  }
}

template <int kHeadDim, int kTiles, bool kIsWhole>
cudaError_t PrepareKernel() {
  return cudaFuncSetAttribute(AttentionKernel<kHeadDim, kTiles, kIsWhole>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(Shared<kHeadDim, kTiles>));
}

template <int kHeadDim>
cudaError_t Prepare() {
  for (const cudaError_t error :
       {PrepareKernel<kHeadDim, kSmallTiles, false>(), PrepareKernel<kHeadDim, kSmallTiles, true>(),
        PrepareKernel<kHeadDim, kLargeTiles, false>(),
        PrepareKernel<kHeadDim, kLargeTiles, true>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <int kHeadDim, int kTiles, bool kIsWhole>
void Launch(const AttentionArgs& args, int32_t first_item, int32_t item_count,
            cudaStream_t stream) {
  if (item_count == 0) return;
  const float scale = 1.44269504f / sqrtf(static_cast<float>(kHeadDim));
  const dim3 grid(item_count, args.shape.kv_head_count);
  AttentionKernel<kHeadDim, kTiles, kIsWhole>
      <<<grid, kThreads, sizeof(Shared<kHeadDim, kTiles>), stream>>>(args, first_item, scale);
}

template <int kHeadDim>
cudaError_t Run(const AttentionArgs& args, cudaStream_t stream) {
  const AttentionItemCounts& counts = args.counts;
  int32_t first = 0;
  Launch<kHeadDim, kSmallTiles, false>(args, first, counts.small_split, stream);
  first += counts.small_split;
  Launch<kHeadDim, kLargeTiles, false>(args, first, counts.large_split, stream);
  first += counts.large_split;
  Launch<kHeadDim, kSmallTiles, true>(args, first, counts.small_whole, stream);
  first += counts.small_whole;
  Launch<kHeadDim, kLargeTiles, true>(args, first, counts.large_whole, stream);
  if (args.merge_count > 0) {
    const dim3 merge_grid(args.merge_count,
                          (args.shape.head_count + kMergeWarps - 1) / kMergeWarps);
    MergeKernel<kHeadDim><<<merge_grid, kMergeWarps * kWarpSize, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t PrepareAttention() {
  const cudaError_t error = Prepare<64>();
  return error != cudaSuccess ? error : Prepare<128>();
}

cudaError_t RunAttention(const AttentionArgs& args, cudaStream_t stream) {
  switch (args.shape.head_dim) {
    case 64:
      return Run<64>(args, stream);
    case 128:
      return Run<128>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace selfsame::cuda
