// Attention of many queries on compute capability 9.0: two warpgroups multiply 64 queries each; a
// third loads these for them, and the keys and values that both share. The products of a tile's
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
  const auto number = static_cast<uint32_t>(tile);
  return {static_cast<int>(number % kStages), number / kStages & 1u};
}

// One arrival for the warp.
__device__ void ArriveWarp(SharedBarrier& barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier.Arrive();
}

// Starts copying a computing group's queries; zeros stand for those past the item's end.
template <int kHeadDim>
__device__ void LoadQueries(const AttentionArgs& args, const AttentionBlock& block, int thread,
                            int first_query, SwizzledTile<kWarpgroupRows, kHeadDim>& tile) {
  constexpr int kPieces = kHeadDim / kVectorElements;
  constexpr int kRowStep = kWarpgroupThreads / kPieces;
  const int dim = thread % kPieces * kVectorElements;
#pragma unroll
  for (int row = thread / kPieces; row < kWarpgroupRows; row += kRowStep) {
    const BFloat16* query = QueryAt<kHeadDim>(args, block, first_query + row);
    const bool is_present = query != nullptr;
    CopyAsync(tile.data + tile.Offset(row, dim), (is_present ? query : args.qkv) + dim, is_present);
  }
}

// The loading group: the queries, which come with the first tile, then up to kStages tiles ahead.
// Queries go first, as nothing begins without them and the tiles of all blocks keep the memory
// busy.
template <int kHeadDim>
__device__ void LoadItem(const AttentionArgs& args, const AttentionBlock& block, int thread,
                         int active_groups, int tile_count, Shared<kHeadDim>& shared) {
  TilePages pages;
  pages.Load(args, block, block.item.first_key);
  for (int group = 0; group < active_groups; ++group) {
    LoadQueries<kHeadDim>(args, block, thread, group * kWarpgroupRows, shared.queries[group]);
  }
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
    const int64_t out_row = int64_t{block.item.first_row + block.row_of(query)};
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
    positions[0] = block.position_of(query);
    positions[1] = block.position_of(query + 8);
    const int32_t lowest = block.position_of(first_query);
    visible_tiles = Uniform((lowest + 1 - first_key) / kAttentionTileKeys);
  }

  __device__ void WaitFor(int tile) const {
    const Place place = PlaceOf(tile);
    shared.is_full[place.stage].Wait(place.parity);
    OrderBeforeProducts();
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
    int next_split = split_tiles;
    for (int tile = 1; tile < end_tile; ++tile) {
      if (!is_settled) {
        Settle(tile - 2, split);
        ScaleOutput(alpha, split);
      }
      WaitFor(tile);
      probabilities.Pack(scores);
      BeginProducts();
      EnqueueScores(tile, scores);
      EnqueueValues(tile - 1, probabilities, split);
      WaitForProducts<1>(scores);
      Mask(tile, scores);
      is_settled = tile == next_split;
      if (is_settled) {
        next_split += split_tiles;
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
    WarpgroupKernel(const __grid_constant__ AttentionCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAlignment) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(shared_memory);
  const AttentionArgs& args = call.args;
  const AttentionBlock block(call);
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
    LoadItem<kHeadDim>(args, block, thread, active_groups, tile_count, shared);
  } else {
    AcquireRegisters<kComputingRegisters>();
    if (group >= active_groups) return;
    Attend<kHeadDim, kIsWhole>(args, block, thread, group * kWarpgroupRows, tile_count, call.scale,
                               shared.queries[group], shared);
  }
#else
  __trap();  // HasWarpgroupAttention says that this must not run
#endif
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

AttentionKernel WarpgroupAttention() {
  return {.functions = {{WarpgroupKernel<64, false>, WarpgroupKernel<64, true>},
                        {WarpgroupKernel<128, false>, WarpgroupKernel<128, true>}},
          .shared_size_bytes = {sizeof(Shared<64>), sizeof(Shared<128>)},
          .threads = kThreads};
}

}  // namespace selfsame::cuda
