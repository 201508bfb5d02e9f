// Attention of many queries on compute capability 9.0: a warpgroup multiplies 64 queries at a time;
// two of them share the keys and values that a third loads for them. The products of a tile's
// probabilities and values, and of the next tile's queries and keys, run while the softmax is
// computed. The same steps in the same order as attention_large.cu.

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kComputingGroups = 2;
constexpr int kThreads = (kComputingGroups + 1) * kWarpgroupThreads;
constexpr int kStages = 4;
static_assert(kWarpgroupTileQueries == kComputingGroups * kWarpgroupRows);
static_assert(kWarpgroupThreads == kAttentionThreads);

template <int kHeadDim>
using KvTile = SwizzledTile<kAttentionTileKeys, kHeadDim>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
using Barrier = SharedBarrier;
#else
using Barrier = uint64_t;
#endif

template <int kHeadDim>
struct Shared {
  SwizzledTile<kWarpgroupRows, kHeadDim> queries[kComputingGroups];
  KvTile<kHeadDim> keys[kStages];
  KvTile<kHeadDim> values[kStages];
  Barrier is_full[kStages];
  Barrier is_empty[kStages];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kWarps = kWarpgroupThreads / kWarpSize;  // of a warpgroup
// Of a thread; the kernel starts with 168 for each.
constexpr int kLoadingRegisters = 56;
constexpr int kComputingRegisters = 224;

// Where a tile goes: to which stage, and how often that was used before, mod 2.
struct Place {
  int stage;
  uint32_t parity;
};
__device__ Place PlaceOf(int tile) {
  return {tile % kStages, static_cast<uint32_t>(tile / kStages) & 1u};
}

// One arrival for the warp.
__device__ void ArriveWarp(SharedBarrier& barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier.Arrive();
}

// The loading group: up to kStages tiles ahead.
template <int kHeadDim>
__device__ void LoadTiles(const AttentionArgs& args, const AttentionBlock& block, int thread,
                          int tile_count, Shared<kHeadDim>& shared) {
  TilePages pages;
  pages.Load(args, block, block.item.first_key);
  for (int tile = 0; tile < tile_count; ++tile) {
    const Place place = PlaceOf(tile);
    const int32_t key = block.item.first_key + tile * kAttentionTileKeys;
    if (tile >= kStages) shared.is_empty[place.stage].Wait(place.parity ^ 1u);
    LoadTile<kHeadDim>(args, block, thread, key, pages, shared.keys[place.stage],
                       shared.values[place.stage]);
    shared.is_full[place.stage].ArriveAfterCopies();
    pages.Load(args, block, key + kAttentionTileKeys);
  }
  CommitCopies();
  WaitForCopies<0>();
}

// Waits for a tile.
__device__ void WaitForTile(const SharedBarrier& is_full, uint32_t parity) {
  is_full.Wait(parity);
  OrderBeforeProducts();
}

// Copies a warpgroup's queries; zeros stand for those past the item's end.
template <int kHeadDim>
__device__ void LoadQueries(const AttentionArgs& args, const AttentionBlock& block, int thread,
                            int first_query, SwizzledTile<kWarpgroupRows, kHeadDim>& tile) {
  constexpr int kPieces = kHeadDim / kVectorElements;
  constexpr int kRowStep = kWarpgroupThreads / kPieces;
  constexpr int kSteps = kWarpgroupRows / kRowStep;
  const int row = thread / kPieces;
  const int dim = thread % kPieces * kVectorElements;
  uint4 words[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const BFloat16* query = QueryAt<kHeadDim>(args, block, first_query + row + step * kRowStep);
    words[step] = make_uint4(0, 0, 0, 0);
    if (query != nullptr) words[step] = *reinterpret_cast<const uint4*>(query + dim);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int place = tile.Offset(row + step * kRowStep, dim);
    *reinterpret_cast<uint4*>(tile.data + place) = words[step];
  }
  OrderBeforeProducts();
}

// Writes a warpgroup's final output by way of `tile`, which held its queries, so that whole rows
// are written at once.
template <int kHeadDim>
__device__ void StoreRows(const AttentionArgs& args, const AttentionBlock& block, int thread,
                          int first_query, const MergedRows<kHeadDim>& merged,
                          SwizzledTile<kWarpgroupRows, kHeadDim>& tile) {
  constexpr int kPieces = kHeadDim / kVectorElements;
  constexpr int kRowStep = kWarpgroupThreads / kPieces;
  const int barrier = 1 + first_query / kWarpgroupRows;
  SyncWarpgroup(barrier);  // all have read the queries
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = thread / kWarpSize * kMmaRows + block.lane / 4 + 8 * half;
    const float inverse = InverseSum(merged.sum[half]);
#pragma unroll
    for (int t = 0; t < RowState<kHeadDim>::kOutputTiles; ++t) {
      const float* values = merged.output[t] + 2 * half;
      const int place = tile.Offset(row, t * kMmaColumns) + block.lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(tile.data + place) =
          NarrowPair(Normalise(values[0], inverse), Normalise(values[1], inverse));
    }
  }
  SyncWarpgroup(barrier);
  const int dim = thread % kPieces * kVectorElements;
#pragma unroll
  for (int row = thread / kPieces; row < kWarpgroupRows; row += kRowStep) {
    const int32_t query = first_query + row;
    if (query >= block.query_count()) break;
    const int64_t out_row = int64_t{block.item.first_row + query / block.group};
    BFloat16* out =
        args.out + (out_row * args.shape.head_count + block.head_of(query)) * kHeadDim + dim;
    *reinterpret_cast<uint4*>(out) =
        *reinterpret_cast<const uint4*>(tile.data + tile.Offset(row, dim));
  }
}

// Enqueues scores = q · keysᵀ.
template <int kHeadDim>
__device__ void Score(uint64_t queries, const KvTile<kHeadDim>& keys, RowScores& scores) {
  constexpr uint32_t kStepBytes = kMmaDepth * sizeof(BFloat16);
  constexpr int kColumnSteps = kSwizzleWidth / kMmaDepth;
  constexpr uint32_t kQueryColumn =
      SwizzledTile<kWarpgroupRows, kHeadDim>::kColumnSize * sizeof(BFloat16);
  constexpr uint32_t kKeyColumn = KvTile<kHeadDim>::kColumnSize * sizeof(BFloat16);
  const uint64_t key_operand = DescribeOperand(keys.data);
#pragma unroll
  for (int step = 0; step < kHeadDim / kMmaDepth; ++step) {
    const uint32_t within = step % kColumnSteps * kStepBytes;
    const uint32_t column = step / kColumnSteps;
    MultiplyShared(Advance(queries, column * kQueryColumn + within),
                   Advance(key_operand, column * kKeyColumn + within), step == 0, scores);
  }
  CommitProducts();
}

// Probabilities as the left operand of their product with the values.
struct Probabilities {
  static constexpr int kSteps = kAttentionTileKeys / kMmaDepth;
  uint32_t fragments[kSteps][4];

  __device__ void Pack(const RowScores& scores) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto& left = scores[2 * step];
      const auto& right = scores[2 * step + 1];
      fragments[step][0] = NarrowPair(left[0], left[1]);
      fragments[step][1] = NarrowPair(left[2], left[3]);
      fragments[step][2] = NarrowPair(right[0], right[1]);
      fragments[step][3] = NarrowPair(right[2], right[3]);
    }
  }
};

// Enqueues output += probabilities · values.
template <int kHeadDim>
__device__ void AddValues(const Probabilities& probabilities, const KvTile<kHeadDim>& values,
                          RowState<kHeadDim>& state) {
  constexpr uint32_t kStepBytes = kMmaDepth * KvTile<kHeadDim>::kPitch * sizeof(BFloat16);
  const uint64_t operand =
      DescribeOperand(values.data, KvTile<kHeadDim>::kColumnSize * sizeof(BFloat16));
#pragma unroll
  for (int step = 0; step < Probabilities::kSteps; ++step) {
    MultiplyRegisters(probabilities.fragments[step], Advance(operand, step * kStepBytes),
                      state.output);
  }
  CommitProducts();
}

// A computing warpgroup's view of its item.
template <int kHeadDim>
struct Scan {
  Shared<kHeadDim>& shared;
  uint64_t queries;  // operand
  float scale;
  int lane;
  int32_t first_key;      // of the item
  int32_t positions[2];   // of the thread's queries
  int32_t visible_tiles;  // the first tiles of the item, of which every query sees all keys

  __device__ Scan(const AttentionBlock& block, int thread, int first_query, float score_scale,
                  const SwizzledTile<kWarpgroupRows, kHeadDim>& tile, Shared<kHeadDim>& memory)
      : shared(memory),
        queries(DescribeOperand(tile.data)),
        scale(score_scale),
        lane(block.lane),
        first_key(block.item.first_key) {
    const int32_t query = first_query + thread / kWarpSize * kMmaRows + lane / 4;
    positions[0] = block.item.first_position + query / block.group;
    positions[1] = block.item.first_position + (query + 8) / block.group;
    const int32_t lowest = block.item.first_position + first_query / block.group;
    visible_tiles = Uniform((lowest + 1 - first_key) / kAttentionTileKeys);
  }

  __device__ void WaitFor(int tile) const {
    const Place place = PlaceOf(tile);
    WaitForTile(shared.is_full[place.stage], place.parity);
  }
  __device__ void EnqueueScores(int tile, RowScores& scores) const {
    Score<kHeadDim>(queries, shared.keys[PlaceOf(tile).stage], scores);
  }
  __device__ void EnqueueValues(int tile, const Probabilities& probabilities,
                                RowState<kHeadDim>& split) const {
    AddValues<kHeadDim>(probabilities, shared.values[PlaceOf(tile).stage], split);
  }
  __device__ void Mask(int tile, RowScores& scores) const {
    if (tile < visible_tiles) return;
    MaskRows(first_key + tile * kAttentionTileKeys + lane % 4 * 2, positions, scores);
  }
  // Waits for the values of `tile`: its stage is free then.
  __device__ void Settle(int tile, RowState<kHeadDim>& split) const {
    WaitForProducts<0>(split.output);
    ArriveWarp(shared.is_empty[PlaceOf(tile).stage], lane);
  }

  // Scans tiles [0, end_tile). Where a split of `split_tiles` ends, it is added to `merged`; the
  // last one is left in `split`. The products of a tile's values are waited for only where the next
  // tile's begin, so that they run beside its softmax.
  __device__ void Run(int end_tile, int split_tiles, RowState<kHeadDim>& split,
                      MergedRows<kHeadDim>& merged) const {
    RowScores scores;
    Probabilities probabilities;
    float alpha[2];
    split.Reset();
    WaitFor(0);
    BeginProducts();
    EnqueueScores(0, scores);
    WaitForProducts<0>(scores);
    Mask(0, scores);
    RowSoftmax(scale, scores, split, alpha);
    bool is_settled = true;
    for (int tile = 1; tile < end_tile; ++tile) {
      WaitFor(tile);
      if (!is_settled) {
        Settle(tile - 2, split);
        ScaleOutput(alpha, split);
      }
      probabilities.Pack(scores);
      BeginProducts();
      EnqueueScores(tile, scores);
      EnqueueValues(tile - 1, probabilities, split);
      WaitForProducts<1>(scores);
      Mask(tile, scores);
      is_settled = tile % split_tiles == 0;
      if (is_settled) {
        Settle(tile - 1, split);
        FinishRows(split);
        merged.Add(scale, split);
        split.Reset();
      }
      RowSoftmax(scale, scores, split, alpha);
    }
    if (!is_settled) {
      Settle(end_tile - 2, split);
      ScaleOutput(alpha, split);
    }
    probabilities.Pack(scores);
    BeginProducts();
    EnqueueValues(end_tile - 1, probabilities, split);
    Settle(end_tile - 1, split);
    FinishRows(split);
  }
};

template <int kHeadDim, bool kIsWhole>
__device__ void Attend(const AttentionArgs& args, const AttentionBlock& block, int thread,
                       int first_query, int tile_count, float scale,
                       SwizzledTile<kWarpgroupRows, kHeadDim>& queries, Shared<kHeadDim>& shared) {
  LoadQueries<kHeadDim>(args, block, thread, first_query, queries);
  SyncWarpgroup(1 + first_query / kWarpgroupRows);
  const Scan<kHeadDim> scan(block, thread, first_query, scale, queries, shared);
  RowState<kHeadDim> split;
  MergedRows<kHeadDim> merged;
  const int split_tiles = kIsWhole ? args.split_keys / kAttentionTileKeys : INT32_MAX;
  scan.Run(tile_count, split_tiles, split, merged);
  if constexpr (kIsWhole) {
    merged.Add(scale, split);
    StoreRows<kHeadDim>(args, block, thread, first_query, merged, queries);
  } else {
    const int32_t query = first_query + thread / kWarpSize * kMmaRows + block.lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      StoreQuery<kHeadDim>(args, block, query + 8 * half, half, 0, split.max[half],
                           split.sum[half][0], split.output);
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

__global__ void ProbeKernel(int* is_built) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  *is_built = 1;
#else
  *is_built = 0;
#endif
}

// One block: one item and one kv head. kIsWhole: items with all keys, whose splits are merged in
// registers; otherwise items with one split.
template <int kHeadDim, bool kIsWhole>
__global__ void __launch_bounds__(kThreads, 1)
    WarpgroupKernel(const __grid_constant__ AttentionArgs args, int32_t first_item, float scale) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAlignment) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(shared_memory);
  const AttentionBlock block(args, first_item);
  if (block.item.row_count == 0) return;
  const int group = Uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  const int active_groups = (block.query_count() + kWarpgroupRows - 1) / kWarpgroupRows;
  const int tile_count = Uniform(
      (block.item.end_key - block.item.first_key + kAttentionTileKeys - 1) / kAttentionTileKeys);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.is_full[stage].Init(kWarpgroupThreads);
      shared.is_empty[stage].Init(static_cast<uint32_t>(active_groups * kWarps));
    }
  }
  __syncthreads();
  if (group == kComputingGroups) {
    ReleaseRegisters<kLoadingRegisters>();
    LoadTiles<kHeadDim>(args, block, thread, tile_count, shared);
  } else {
    AcquireRegisters<kComputingRegisters>();
    if (group >= active_groups) return;
    Attend<kHeadDim, kIsWhole>(args, block, thread, group * kWarpgroupRows, tile_count, scale,
                               shared.queries[group], shared);
  }
#else
  __trap();  // HasWarpgroupAttention says that this must not run
#endif
}

template <int kHeadDim, bool kIsWhole>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(WarpgroupKernel<kHeadDim, kIsWhole>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(Shared<kHeadDim>));
}

template <int kHeadDim>
void Launch(const AttentionArgs& args, const AttentionRange& range, cudaStream_t stream) {
  const dim3 grid(range.item_count, args.shape.kv_head_count);
  const auto kernel =
      range.is_whole ? WarpgroupKernel<kHeadDim, true> : WarpgroupKernel<kHeadDim, false>;
  kernel<<<grid, kThreads, sizeof(Shared<kHeadDim>), stream>>>(args, range.first_item,
                                                               AttentionScale(kHeadDim));
}

}  // namespace

cudaError_t HasWarpgroupAttention(bool& is_built) {
  int* flag = nullptr;
  cudaError_t error = cudaMalloc(&flag, sizeof(int));
  if (error != cudaSuccess) return error;
  ProbeKernel<<<1, 1>>>(flag);
  int value = 0;
  error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaMemcpy(&value, flag, sizeof(int), cudaMemcpyDeviceToHost);
  is_built = value == 1;
  static_cast<void>(cudaFree(flag));
  return error;
}

cudaError_t PrepareWarpgroupAttention() {
  for (const cudaError_t error :
       {Prepare<64, false>(), Prepare<64, true>(), Prepare<128, false>(), Prepare<128, true>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

void RunWarpgroupAttention(const AttentionArgs& args, const AttentionRange& range,
                           cudaStream_t stream) {
  if (args.shape.head_dim == 64) return Launch<64>(args, range, stream);
  Launch<128>(args, range, stream);
}

}  // namespace selfsame::cuda
