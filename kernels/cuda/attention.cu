#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kWarps = kAttentionTileQueries / kMmaRows;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kStages = 2;
constexpr int kKeyTiles = kAttentionTileKeys / kMmaColumns;  // accumulators of a tile's scores
constexpr int kMergeWarps = 4;

// A tile of keys or values in shared memory: [64][kHeadDim], rows padded by 16 bytes so that the
// eight rows a matrix load touches lie in different banks.
template <int kHeadDim>
struct Tile {
  static constexpr int kPitch = kHeadDim + kVectorElements;
  BFloat16 data[kAttentionTileKeys * kPitch];
};

template <int kHeadDim>
struct SharedTiles {
  Tile<kHeadDim> keys[kStages];
  Tile<kHeadDim> values[kStages];
};

// Softmax state and output of the 16 queries of a warp. A thread holds queries lane / 4 and
// lane / 4 + 8; of each, columns 8 t + 2 (lane % 4) and the next, for every t.
template <int kHeadDim>
struct State {
  float max[2];
  float sum[2];
  float output[kHeadDim / kMmaColumns][4];

  __device__ void Reset() {
    for (int i = 0; i < 2; ++i) {
      max[i] = NegativeInfinity();
      sum[i] = 0.0f;
    }
#pragma unroll
    for (auto& tile : output) {
      for (float& value : tile) value = 0.0f;
    }
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

// Starts copying a tile's keys and values, at positions [first_key, first_key + 64) below end_key;
// zeros stand for the rest.
template <int kHeadDim>
__device__ void LoadTile(const AttentionArgs& args, const AttentionItem& item, int32_t first_key,
                         int32_t end_key, Tile<kHeadDim>& keys, Tile<kHeadDim>& values) {
  constexpr int kChunks = kHeadDim / kVectorElements;
  const int64_t head_size = int64_t{kKvBlockTokens} * kHeadDim;
  const int64_t kind_size = head_size * args.shape.kv_head_count;
  const int32_t* table = args.block_tables + item.block_table;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kAttentionTileKeys * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int dim = i % kChunks * kVectorElements;
    const int32_t key = first_key + row;
    const bool is_present = key < end_key;
    const BFloat16* source = args.kv;
    if (is_present) {
      source += table[key / kKvBlockTokens] * 2 * kind_size + blockIdx.y * head_size +
                key % kKvBlockTokens * kHeadDim + dim;
    }
    const int place = row * Tile<kHeadDim>::kPitch + dim;
    CopyAsync(keys.data + place, source, is_present);
    CopyAsync(values.data + place, is_present ? source + kind_size : source, is_present);
  }
}

// Query fragments of a warp: [head_dim / 16][4 registers].
template <int kHeadDim>
struct Queries {
  uint32_t fragments[kHeadDim / kMmaDepth][4];
};

// The address of a query, numbered row * group + head within the item, or null past its end.
template <int kHeadDim>
__device__ const BFloat16* QueryAt(const AttentionArgs& args, const AttentionItem& item,
                                   int32_t query, int32_t group) {
  if (query >= item.row_count * group) return nullptr;
  const int64_t width = int64_t{args.shape.head_count + 2 * args.shape.kv_head_count} * kHeadDim;
  return args.qkv + (item.first_row + query / group) * width +
         (static_cast<int32_t>(blockIdx.y) * group + query % group) * kHeadDim;
}

template <int kHeadDim>
__device__ void LoadQueries(const BFloat16* upper, const BFloat16* lower, Queries<kHeadDim>& q) {
  const int column = threadIdx.x % 4 * 2;
  const auto load = [column](const BFloat16* query, int dim) {
    return query == nullptr ? 0u : *reinterpret_cast<const uint32_t*>(query + dim + column);
  };
#pragma unroll
  for (int step = 0; step < kHeadDim / kMmaDepth; ++step) {
    const int dim = step * kMmaDepth;
    q.fragments[step][0] = load(upper, dim);
    q.fragments[step][1] = load(lower, dim);
    q.fragments[step][2] = load(upper, dim + 8);
    q.fragments[step][3] = load(lower, dim + 8);
  }
}

// scores = q · keysᵀ, unscaled.
template <int kHeadDim>
__device__ void Score(const Queries<kHeadDim>& q, const Tile<kHeadDim>& keys,
                      float (&scores)[kKeyTiles][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const int row = lane / 16 * 8 + lane % 8;
  const int dim = lane / 8 % 2 * 8;
#pragma unroll
  for (auto& tile : scores) {
    for (float& value : tile) value = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / kMmaDepth; ++step) {
#pragma unroll
    for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
      uint32_t k[4];
      LoadMatrices(keys.data + (pair * 16 + row) * Tile<kHeadDim>::kPitch + step * kMmaDepth + dim,
                   k);
      MultiplyAdd(q.fragments[step], k[0], k[1], scores[2 * pair]);
      MultiplyAdd(q.fragments[step], k[2], k[3], scores[2 * pair + 1]);
    }
  }
}

// Turns scores into probabilities and brings max, sum and output up to the new maximum. Keys from
// first_key + 2 * (lane % 4) on; `positions` are those of the thread's two queries.
template <int kHeadDim>
__device__ void Softmax(float scale, int32_t first_key, const int32_t (&positions)[2],
                        float (&scores)[kKeyTiles][4], State<kHeadDim>& state) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float tile_max = NegativeInfinity();
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[t][2 * half + i];
        const bool is_visible = first_key + t * kMmaColumns + i <= positions[half];
        score = is_visible ? score * scale : NegativeInfinity();
        tile_max = fmaxf(tile_max, score);
      }
    }
    tile_max = fmaxf(tile_max, __shfl_xor_sync(kAllLanes, tile_max, 1));
    tile_max = fmaxf(tile_max, __shfl_xor_sync(kAllLanes, tile_max, 2));
    const float new_max = fmaxf(state.max[half], tile_max);
    const float reference = Reference(new_max);
    const float alpha = Exp2(state.max[half] - reference);
    float sum = 0.0f;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[t][2 * half + i];
        score = Exp2(score - reference);
        sum = sum + score;
      }
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

// output += bf16(probabilities) · values.
template <int kHeadDim>
__device__ void AddValues(const float (&probabilities)[kKeyTiles][4], const Tile<kHeadDim>& values,
                          State<kHeadDim>& state) {
  const int lane = threadIdx.x % kWarpSize;
  const int row = lane / 8 % 2 * 8 + lane % 8;
  const int dim = lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kAttentionTileKeys / kMmaDepth; ++step) {
    const auto& left = probabilities[2 * step];
    const auto& right = probabilities[2 * step + 1];
    const uint32_t p[4] = {NarrowPair(left[0], left[1]), NarrowPair(left[2], left[3]),
                           NarrowPair(right[0], right[1]), NarrowPair(right[2], right[3])};
#pragma unroll
    for (int pair = 0; pair < kHeadDim / 16; ++pair) {
      uint32_t v[4];
      LoadMatricesTransposed(
          values.data + (step * kMmaDepth + row) * Tile<kHeadDim>::kPitch + pair * 16 + dim, v);
      MultiplyAdd(p, v[0], v[1], state.output[2 * pair]);
      MultiplyAdd(p, v[2], v[3], state.output[2 * pair + 1]);
    }
  }
}

// Adds the four partial sums of each query.
template <int kHeadDim>
__device__ void FinishSplit(State<kHeadDim>& state) {
#pragma unroll
  for (float& sum : state.sum) {
    sum = sum + __shfl_xor_sync(kAllLanes, sum, 1);
    sum = sum + __shfl_xor_sync(kAllLanes, sum, 2);
  }
}

template <int kHeadDim>
__device__ void MergeState(const State<kHeadDim>& split, State<kHeadDim>& merged) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const MergeWeights weights =
        MergeSplit(split.max[half], split.sum[half], merged.max[half], merged.sum[half]);
#pragma unroll
    for (int t = 0; t < kHeadDim / kMmaColumns; ++t) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        merged.output[t][i] = MergeOutput(split.output[t][i], merged.output[t][i], weights);
      }
    }
  }
}

// Writes one query's final output, or its share of the partials.
template <int kHeadDim>
__device__ void StoreQuery(const AttentionArgs& args, const AttentionItem& item, int32_t query,
                           int32_t group, int half, const State<kHeadDim>& state) {
  if (query >= item.row_count * group) return;
  const int32_t head = static_cast<int32_t>(blockIdx.y) * group + query % group;
  const int32_t row = query / group;
  const int column = threadIdx.x % 4 * 2;
  if (item.partial_row < 0) {
    BFloat16* out = args.out +
                    (int64_t{item.first_row + row} * args.shape.head_count + head) * kHeadDim +
                    column;
#pragma unroll
    for (int t = 0; t < kHeadDim / kMmaColumns; ++t) {
      const float* values = state.output[t] + 2 * half;
      *reinterpret_cast<uint32_t*>(out + t * kMmaColumns) =
          NarrowPair(Normalise(values[0], state.sum[half]), Normalise(values[1], state.sum[half]));
    }
    return;
  }
  const int64_t place = int64_t{item.partial_row + row} * args.shape.head_count + head;
  if (column == 0) {
    args.partial_state[2 * place] = state.max[half];
    args.partial_state[2 * place + 1] = state.sum[half];
  }
  float* output = args.partial_output + place * kHeadDim + column;
#pragma unroll
  for (int t = 0; t < kHeadDim / kMmaColumns; ++t) {
    const float* values = state.output[t] + 2 * half;
    *reinterpret_cast<float2*>(output + t * kMmaColumns) = make_float2(values[0], values[1]);
  }
}

template <int kHeadDim>
__device__ void ZeroRows(const AttentionArgs& args, const AttentionItem& item, int32_t group) {
  const int32_t width = group * kHeadDim;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kVectorElements; i < item.row_count * width;
       i += kThreads * kVectorElements) {
    BFloat16* out = args.out +
                    int64_t{item.first_row + i / width} * args.shape.head_count * kHeadDim +
                    static_cast<int32_t>(blockIdx.y) * width + i % width;
    *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
  }
}

// One block: one item and one kv head. kIsWhole: items with all keys (splits are merged in
// registers); otherwise items with one split. Items of the other sort are left alone.
template <int kHeadDim, bool kIsWhole>
__global__ void __launch_bounds__(kThreads, kIsWhole ? 2 : 3)
    AttentionKernel(const __grid_constant__ AttentionArgs args, float scale) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& tiles = *reinterpret_cast<SharedTiles<kHeadDim>*>(shared_memory);
  const AttentionItem item = args.items[blockIdx.x];
  if ((item.partial_row < 0) != kIsWhole) return;
  const int32_t group = args.shape.head_count / args.shape.kv_head_count;
  if (item.first_position < 0) return ZeroRows<kHeadDim>(args, item, group);

  const int lane = threadIdx.x % kWarpSize;
  const int32_t warp_query = static_cast<int32_t>(threadIdx.x) / kWarpSize * kMmaRows;
  const bool has_queries = warp_query < item.row_count * group;
  const int32_t queries[2] = {warp_query + lane / 4, warp_query + lane / 4 + 8};
  const int32_t positions[2] = {item.first_position + queries[0] / group,
                                item.first_position + queries[1] / group};
  Queries<kHeadDim> q;
  LoadQueries(QueryAt<kHeadDim>(args, item, queries[0], group),
              QueryAt<kHeadDim>(args, item, queries[1], group), q);
  State<kHeadDim> split;
  State<kHeadDim> merged;
  split.Reset();
  if constexpr (kIsWhole) merged.Reset();

  LoadTile(args, item, item.first_key, item.end_key, tiles.keys[0], tiles.values[0]);
  CommitCopies();
  int stage = 0;
  for (int32_t key = item.first_key; key < item.end_key; key += kAttentionTileKeys) {
    const int32_t next = key + kAttentionTileKeys;
    if (next < item.end_key) {
      LoadTile(args, item, next, item.end_key, tiles.keys[stage ^ 1], tiles.values[stage ^ 1]);
    }
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();
    if (has_queries) {
      float scores[kKeyTiles][4];
      Score(q, tiles.keys[stage], scores);
      Softmax(scale, key + lane % 4 * 2, positions, scores, split);
      AddValues(scores, tiles.values[stage], split);
      if (kIsWhole && (next % args.split_keys == 0 || next >= item.end_key)) {
        FinishSplit(split);
        MergeState(split, merged);
        split.Reset();
      }
    }
    __syncthreads();
    stage ^= 1;
  }
  if (!has_queries) return;
  if constexpr (!kIsWhole) FinishSplit(split);
  for (int half = 0; half < 2; ++half) {
    StoreQuery(args, item, queries[half], group, half, kIsWhole ? merged : split);
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

template <int kHeadDim>
cudaError_t Prepare() {
  constexpr int kSharedBytes = sizeof(SharedTiles<kHeadDim>);
  cudaError_t error = cudaFuncSetAttribute(
      AttentionKernel<kHeadDim, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(AttentionKernel<kHeadDim, false>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}

template <int kHeadDim>
cudaError_t Run(const AttentionArgs& args, cudaStream_t stream) {
  constexpr size_t kSharedBytes = sizeof(SharedTiles<kHeadDim>);
  const float scale = 1.44269504f / sqrtf(static_cast<float>(kHeadDim));
  const dim3 grid(args.item_count, args.shape.kv_head_count);
  if (args.has_whole_items) {
    AttentionKernel<kHeadDim, true><<<grid, kThreads, kSharedBytes, stream>>>(args, scale);
  }
  if (args.merge_count > 0) {
    AttentionKernel<kHeadDim, false><<<grid, kThreads, kSharedBytes, stream>>>(args, scale);
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
  if (args.item_count == 0) return cudaSuccess;
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
