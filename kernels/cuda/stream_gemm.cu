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

// Starts copying rows [first, first + count) of a matrix, columns [column, column + kDepth); zeros
// stand for what lies outside.
__device__ void LoadRows(const BFloat16* matrix, int64_t first, int count, int64_t row_count,
                         int64_t column, int64_t k, BFloat16* to) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count * kChunks; i += kThreads) {
    const int64_t row = first + i / kChunks;
    const int64_t at = column + i % kChunks * kVectorElements;
    const bool is_present = row < row_count && at < k;
    CopyAsync(to + i / kChunks * kPitch + i % kChunks * kVectorElements,
              is_present ? matrix + row * k + at : matrix, is_present);
  }
}

template <typename C>
__device__ void LoadStage(const StreamGemmArgs& args, int64_t chunk, int64_t first_output, int rows,
                          BFloat16* shared) {
  const int64_t column = chunk * kDepth;
  if (column < args.k) {
    BFloat16* stage = shared + chunk % C::kStages * C::kStageElements;
    LoadRows(args.w, first_output, C::kOutputs, args.n, column, args.k, stage);
    LoadRows(args.x, 0, rows, args.rows, column, args.k, stage + C::kOutputs * kPitch);
  }
  CommitCopies();
}

template <int kOutputTiles, int kRows>
__global__ void __launch_bounds__(kThreads) StreamGemmKernel(StreamGemmArgs args) {
  using C = Config<kOutputTiles, kRows>;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto* shared = reinterpret_cast<BFloat16*>(shared_memory);
  const int64_t first_output = int64_t{blockIdx.x} * C::kOutputs;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int output_tile = warp % kOutputTiles;
  const int first_row = warp / kOutputTiles * C::kWarpRows;
  float sums[C::kRowTiles][4] = {};

  for (int stage = 0; stage < C::kStages - 1; ++stage) {
    LoadStage<C>(args, stage, first_output, kRows, shared);
  }
  const int64_t chunks = (args.k + kDepth - 1) / kDepth;
  // Addresses of the matrices a lane loads, within a stage.
  const int w_at = (output_tile * kMmaRows + lane % 16) * kPitch + lane / 16 * 8;
  const int x_at = (C::kOutputs + first_row + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
  // With 8 rows to a warp, one load brings two steps.
  const int x_pair_at = (C::kOutputs + first_row + lane % 8) * kPitch + lane / 8 * 8;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    WaitForCopies<C::kStages - 2>();
    __syncthreads();
    LoadStage<C>(args, chunk + C::kStages - 1, first_output, kRows, shared);
    const BFloat16* stage = shared + chunk % C::kStages * C::kStageElements;
    if constexpr (C::kRowTiles == 1) {
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t w[2][4];
        uint32_t x[4];
        LoadMatrices(stage + w_at + step * kMmaDepth, w[0]);
        LoadMatrices(stage + w_at + (step + 1) * kMmaDepth, w[1]);
        LoadMatrices(stage + x_pair_at + step * kMmaDepth, x);
        MultiplyAdd(w[0], x[0], x[1], sums[0]);
        MultiplyAdd(w[1], x[2], x[3], sums[0]);
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t w[4];
        LoadMatrices(stage + w_at + step * kMmaDepth, w);
#pragma unroll
        for (int pair = 0; pair < C::kRowTiles / 2; ++pair) {
          uint32_t x[4];
          LoadMatrices(stage + x_at + pair * 16 * kPitch + step * kMmaDepth, x);
          MultiplyAdd(w, x[0], x[1], sums[2 * pair]);
          MultiplyAdd(w, x[2], x[3], sums[2 * pair + 1]);
        }
      }
    }
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
    if (error != cudaSuccess) return error;
  }
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
