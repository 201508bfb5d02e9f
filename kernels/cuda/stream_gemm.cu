#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/stream_gemm.h"
#include "kernels/cuda/tensor_core.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kDepth = 128;  // of a stage
constexpr int kSteps = kDepth / kMmaDepth;
constexpr int kPitch = kDepth + kVectorElements;
constexpr int kChunks = kDepth / kVectorElements;
constexpr int kMaxStages = 6;
// Two blocks fit on a multiprocessor.
constexpr int kMaxSharedBytes = 108 * 1024;

// kOutputTiles tiles of 16 outputs and kRows rows of x. With four tiles each warp has one and all
// rows; with two, a pair of warps shares a tile, each with half of the rows.
template <int kOutputTiles, int kRows>
struct Config {
  static constexpr int kOutputs = kOutputTiles * kMmaRows;
  static constexpr int kWarpRows = kRows * kOutputTiles / kWarps;
  static constexpr int kRowTiles = kWarpRows / kMmaColumns;
  static constexpr int kStageElements = (kOutputs + kRows) * kPitch;
  static constexpr int kStageBytes = kStageElements * static_cast<int>(sizeof(BFloat16));
  static constexpr int kStages =
      kMaxSharedBytes / kStageBytes < kMaxStages ? kMaxSharedBytes / kStageBytes : kMaxStages;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

// A thread's share of copying kCount rows of a matrix, kDepth columns at a time: 16 bytes of every
// eighth row. Addresses are worked out once, since a stage is too short to do it again.
template <int kCount>
class RowLoader {
 public:
  // Rows [first, first + kCount) of `matrix` [row_count, k]; zeros stand for what lies outside.
  __device__ RowLoader(const BFloat16* matrix, int64_t first, int64_t row_count, int64_t k)
      : row_(static_cast<int>(threadIdx.x) / kChunks),
        column_(static_cast<int>(threadIdx.x) % kChunks * kVectorElements),
        stride_(kStepRows * k),
        present_rows_(row_count - first < kCount ? static_cast<int>(row_count - first) : kCount),
        next_(matrix + (first + row_) * k + column_) {}

  // Starts copying the next kDepth columns, of which `present_columns` are left.
  __device__ void Load(int64_t present_columns, BFloat16* to) {
    const bool has_columns = column_ < present_columns;
    BFloat16* place = to + row_ * kPitch + column_;
    const BFloat16* from = next_;
#pragma unroll
    for (int step = 0; step < kCount / kStepRows; ++step) {
      CopyAsync(place + step * kStepRows * kPitch, from,
                has_columns && step * kStepRows + row_ < present_rows_);
      from += stride_;
    }
    next_ += kDepth;
  }

 private:
  static constexpr int kStepRows = kThreads / kChunks;
  static_assert(kCount % kStepRows == 0);

  const int row_;
  const int column_;
  const int64_t stride_;
  const int present_rows_;
  const BFloat16* next_;
};

template <int kOutputTiles, int kRows>
__global__ void __launch_bounds__(kThreads, 2) StreamGemmKernel(StreamGemmArgs args) {
  using C = Config<kOutputTiles, kRows>;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto* shared = reinterpret_cast<BFloat16*>(shared_memory);
  const int64_t first_output = int64_t{blockIdx.x} * C::kOutputs;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int output_tile = warp % kOutputTiles;
  const int first_row = warp / kOutputTiles * C::kWarpRows;
  float sums[C::kRowTiles][4] = {};

  RowLoader<C::kOutputs> w_loader(args.w, first_output, args.n, args.k);
  RowLoader<kRows> x_loader(args.x, 0, args.rows, args.k);
  int64_t columns_left = args.k;
  int load_stage = 0;
  const auto load_next = [&] {
    BFloat16* stage = shared + load_stage * C::kStageElements;
    if (columns_left > 0) {
      w_loader.Load(columns_left, stage);
      x_loader.Load(columns_left, stage + C::kOutputs * kPitch);
    }
    CommitCopies();
    columns_left -= kDepth;
    load_stage = load_stage + 1 == C::kStages ? 0 : load_stage + 1;
  };
  for (int i = 0; i < C::kStages - 1; ++i) load_next();
  const auto chunks = static_cast<int32_t>((args.k + kDepth - 1) / kDepth);
  // Addresses of the matrices a lane loads, within a stage.
  const int w_at = (output_tile * kMmaRows + lane % 16) * kPitch + lane / 16 * 8;
  const int x_at = (C::kOutputs + first_row + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
  // With 8 rows to a warp, one load brings two steps.
  const int x_pair_at = (C::kOutputs + first_row + lane % 8) * kPitch + lane / 8 * 8;
  const BFloat16* stage = shared;
  const BFloat16* const last_stage = shared + (C::kStages - 1) * C::kStageElements;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    WaitForCopies<C::kStages - 2>();
    __syncthreads();
    load_next();
    // All of a stage's fragments first: the chain of products then waits for itself only.
    uint32_t w[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      LoadMatrices(stage + w_at + step * kMmaDepth, w[step]);
    }
    if constexpr (C::kRowTiles == 1) {
      uint32_t x[kSteps / 2][4];
#pragma unroll
      for (int i = 0; i < kSteps / 2; ++i) {
        LoadMatrices(stage + x_pair_at + 2 * i * kMmaDepth, x[i]);
      }
#pragma unroll
      for (int i = 0; i < kSteps / 2; ++i) {
        MultiplyAddInOrder(w[2 * i], x[i][0], x[i][1], sums[0]);
        MultiplyAddInOrder(w[2 * i + 1], x[i][2], x[i][3], sums[0]);
      }
    } else {
      constexpr int kPairs = C::kRowTiles / 2;
      uint32_t x[2][kPairs][4];
      const auto load_x = [&](int step) {
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          LoadMatrices(stage + x_at + pair * 16 * kPitch + step * kMmaDepth, x[step % 2][pair]);
        }
      };
      load_x(0);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) load_x(step + 1);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const auto& part = x[step % 2][pair];
          MultiplyAddInOrder(w[step], part[0], part[1], sums[2 * pair]);
          MultiplyAddInOrder(w[step], part[2], part[3], sums[2 * pair + 1]);
        }
      }
    }
    stage = stage == last_stage ? shared : stage + C::kStageElements;
  }
#pragma unroll
  for (int t = 0; t < C::kRowTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t output = first_output + output_tile * kMmaRows + lane / 4 + i / 2 * 8;
      const int row = first_row + t * kMmaColumns + lane % 4 * 2 + i % 2;
      if (row >= args.rows || output >= args.n) continue;
      const int64_t place = row * args.n + output;
      if (args.is_float) {
        static_cast<float*>(args.y)[place] = sums[t][i];
      } else {
        static_cast<BFloat16*>(args.y)[place] = Narrow(sums[t][i]);
      }
    }
  }
}

template <int kOutputTiles, int kRows>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(StreamGemmKernel<kOutputTiles, kRows>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              Config<kOutputTiles, kRows>::kSharedBytes);
}

template <int kOutputTiles, int kRows>
cudaError_t Launch(const StreamGemmArgs& args, cudaStream_t stream) {
  using C = Config<kOutputTiles, kRows>;
  const auto blocks = static_cast<unsigned>((args.n + C::kOutputs - 1) / C::kOutputs);
  StreamGemmKernel<kOutputTiles, kRows><<<blocks, kThreads, C::kSharedBytes, stream>>>(args);
  return cudaGetLastError();
}

constexpr int32_t kConfigRows[kStreamGemmConfigs] = {16, 16, 32, 32, 64, 64};

}  // namespace

bool StreamGemmTakes(int config, int32_t rows, int64_t k) {
  return rows <= kConfigRows[config] && k % kMmaDepth == 0;
}

cudaError_t PrepareStreamGemm() {
  for (const cudaError_t error : {Prepare<2, 16>(), Prepare<4, 16>(), Prepare<2, 32>(),
                                  Prepare<4, 32>(), Prepare<2, 64>(), Prepare<4, 64>()}) {
    // On a device with less shared memory a configuration does not run, and is not chosen.
    if (error != cudaSuccess && error != cudaErrorInvalidValue) return error;
  }
  static_cast<void>(cudaGetLastError());
  return cudaSuccess;
}

cudaError_t RunStreamGemm(int config, const StreamGemmArgs& args, cudaStream_t stream) {
  if (!StreamGemmTakes(config, args.rows, args.k)) return cudaErrorInvalidValue;
  switch (config) {
    case 0:
      return Launch<2, 16>(args, stream);
    case 1:
      return Launch<4, 16>(args, stream);
    case 2:
      return Launch<2, 32>(args, stream);
    case 3:
      return Launch<4, 32>(args, stream);
    case 4:
      return Launch<2, 64>(args, stream);
    case 5:
      return Launch<4, 64>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace selfsame::cuda
