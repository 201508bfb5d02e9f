// Attention of many queries on compute capability 9.0: a warpgroup multiplies 64 queries at a time,
// two of them share the keys and values that a third loads for them, and meanwhile one computes its
// softmax the other multiplies. The same steps in the same order as attention_large.cu.

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
// Tiles on their way into shared memory while the loading group waits for one.
constexpr int kLoadsInFlight = 2;
static_assert(kLoadsInFlight < kStages - 1);
// Of a thread; the kernel starts with 168 for each.
constexpr int kLoadingRegisters = 40;
constexpr int kComputingRegisters = 232;

// Where a tile goes, and how often its stage has been used before.
struct Place {
  int stage;
  uint32_t parity;
};
__device__ Place PlaceOf(int tile) {
  return {tile % kStages, static_cast<uint32_t>(tile / kStages) & 1u};
}

// One arrival for each warp.
__device__ void ArriveWarp(SharedBarrier& barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier.Arrive();
}

template <int kHeadDim>
__device__ void LoadTiles(const AttentionArgs& args, const AttentionBlock& block, int thread,
                          int tile_count, Shared<kHeadDim>& shared) {
  const auto publish = [&](int tile) {
    PublishToProducts();
    ArriveWarp(shared.is_full[PlaceOf(tile).stage], block.lane);
  };
  for (int tile = 0; tile < tile_count; ++tile) {
    const Place place = PlaceOf(tile);
    if (tile >= kStages) shared.is_empty[place.stage].Wait(place.parity ^ 1u);
    LoadTile<kHeadDim>(args, block, thread, block.item.first_key + tile * kAttentionTileKeys,
                       shared.keys[place.stage], shared.values[place.stage]);
    CommitCopies();
    if (tile < kLoadsInFlight) continue;
    WaitForCopies<kLoadsInFlight>();
    publish(tile - kLoadsInFlight);
  }
  WaitForCopies<0>();
  for (int tile = max(0, tile_count - kLoadsInFlight); tile < tile_count; ++tile) publish(tile);
}

// Copies a warpgroup's queries; zeros stand for those past the item's end.
template <int kHeadDim>
__device__ void LoadQueries(const AttentionArgs& args, const AttentionBlock& block, int thread,
                            int first_query, SwizzledTile<kWarpgroupRows, kHeadDim>& tile) {
  constexpr int kPieces = kHeadDim / kVectorElements;
#pragma unroll 4
  for (int piece = thread; piece < kWarpgroupRows * kPieces; piece += kWarpgroupThreads) {
    const int row = piece / kPieces;
    const int dim = piece % kPieces * kVectorElements;
    const BFloat16* query = QueryAt<kHeadDim>(args, block, first_query + row);
    const uint4 words =
        query == nullptr ? make_uint4(0, 0, 0, 0) : *reinterpret_cast<const uint4*>(query + dim);
    *reinterpret_cast<uint4*>(tile.data + tile.Offset(row, dim)) = words;
  }
  PublishToProducts();
}

// scores = q · keysᵀ, unscaled.
template <int kHeadDim>
__device__ void Score(uint64_t queries, const KvTile<kHeadDim>& keys, RowScores& scores) {
  constexpr uint32_t kStepBytes = kMmaDepth * sizeof(BFloat16);
  constexpr int kColumnSteps = kSwizzleWidth / kMmaDepth;
  constexpr uint32_t kQueryColumn =
      SwizzledTile<kWarpgroupRows, kHeadDim>::kColumnSize * sizeof(BFloat16);
  constexpr uint32_t kKeyColumn = KvTile<kHeadDim>::kColumnSize * sizeof(BFloat16);
  const uint64_t key_operand = DescribeOperand(keys.data);
  BeginProducts();
#pragma unroll
  for (int step = 0; step < kHeadDim / kMmaDepth; ++step) {
    const uint32_t within = step % kColumnSteps * kStepBytes;
    const uint32_t column = step / kColumnSteps;
    MultiplyShared(Advance(queries, column * kQueryColumn + within),
                   Advance(key_operand, column * kKeyColumn + within), step == 0, scores);
  }
  FinishProducts(scores);
}

// output += bf16(probabilities) · values.
template <int kHeadDim>
__device__ void AddValues(const RowScores& probabilities, const KvTile<kHeadDim>& values,
                          RowState<kHeadDim>& state) {
  constexpr int kSteps = kAttentionTileKeys / kMmaDepth;
  constexpr uint32_t kStepBytes = kMmaDepth * KvTile<kHeadDim>::kPitch * sizeof(BFloat16);
  uint32_t p[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const auto& left = probabilities[2 * step];
    const auto& right = probabilities[2 * step + 1];
    p[step][0] = NarrowPair(left[0], left[1]);
    p[step][1] = NarrowPair(left[2], left[3]);
    p[step][2] = NarrowPair(right[0], right[1]);
    p[step][3] = NarrowPair(right[2], right[3]);
  }
  const uint64_t operand =
      DescribeOperand(values.data, KvTile<kHeadDim>::kColumnSize * sizeof(BFloat16));
  BeginProducts();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    MultiplyRegisters(p[step], Advance(operand, step * kStepBytes), state.output);
  }
  FinishProducts(state.output);
}

template <int kHeadDim, bool kIsWhole>
__device__ void Attend(const AttentionArgs& args, const AttentionBlock& block, int thread,
                       int first_query, int tile_count, float scale,
                       SwizzledTile<kWarpgroupRows, kHeadDim>& query_tile,
                       Shared<kHeadDim>& shared) {
  LoadQueries<kHeadDim>(args, block, thread, first_query, query_tile);
  SyncWarpgroup(1 + first_query / kWarpgroupRows);
  const uint64_t queries = DescribeOperand(query_tile.data);
  const int row = thread / kWarpSize * kMmaRows + block.lane / 4;
  const int32_t query[2] = {first_query + row, first_query + row + 8};
  const int32_t positions[2] = {block.item.first_position + query[0] / block.group,
                                block.item.first_position + query[1] / block.group};
  const int32_t lowest_position = block.item.first_position + first_query / block.group;
  RowState<kHeadDim> split;
  MergedRows<kHeadDim> merged;
  split.Reset();
  for (int tile = 0; tile < tile_count; ++tile) {
    const Place place = PlaceOf(tile);
    const int32_t key = block.item.first_key + tile * kAttentionTileKeys;
    const int32_t next = key + kAttentionTileKeys;
    shared.is_full[place.stage].Wait(place.parity);
    RowScores scores;
    Score<kHeadDim>(queries, shared.keys[place.stage], scores);
    if (next > lowest_position + 1) MaskRows(key + block.lane % 4 * 2, positions, scores);
    RowSoftmax(scale, scores, split);
    AddValues<kHeadDim>(scores, shared.values[place.stage], split);
    ArriveWarp(shared.is_empty[place.stage], block.lane);
    if (kIsWhole && (next % args.split_keys == 0 || tile + 1 == tile_count)) {
      FinishRows(split);
      merged.Add(split);
      split.Reset();
    }
  }
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

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

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
  const int group = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  const int active_groups = (block.query_count() + kWarpgroupRows - 1) / kWarpgroupRows;
  const int tile_count =
      (block.item.end_key - block.item.first_key + kAttentionTileKeys - 1) / kAttentionTileKeys;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.is_full[stage].Init(kWarps);
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
