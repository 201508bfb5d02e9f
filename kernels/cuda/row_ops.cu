#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/row_ops.h"

namespace selfsame::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kHeadWarps = 8;
// Pieces of 8 elements that a thread of a norm keeps: widths up to 8192.
constexpr int kKeptPieces = 4;

// Whether rows of this width can be read 16 bytes at a time.
bool IsAligned(int32_t width, const void* a, const void* b, const void* c) {
  const auto bits = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
                    reinterpret_cast<uintptr_t>(c);
  return width % kVectorElements == 0 && bits % sizeof(uint4) == 0;
}

__device__ float InverseRms(float sum_of_squares, int32_t width, float epsilon) {
  const float mean = __fdiv_rn(sum_of_squares, static_cast<float>(width));
  return __fdiv_rn(1.0f, __fsqrt_rn(mean + epsilon));
}

__device__ int32_t QkvWidth(const AttentionShape& shape) {
  return (shape.head_count + 2 * shape.kv_head_count) * shape.head_dim;
}

// bf16(x * scale) * weight, the last product not yet rounded.
__device__ float ScaleByWeight(float x, float scale, float weight) {
  return Widen(Narrow(x * scale)) * weight;
}

__global__ void __launch_bounds__(kRowThreads) RmsNormKernel(RmsNormArgs args, bool is_aligned) {
  const int64_t offset = int64_t{blockIdx.x} * args.width;
  const BFloat16* x = args.x + offset;
  BFloat16* residual = args.residual == nullptr ? nullptr : args.residual + offset;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kVectorElements;
  constexpr int32_t kStep = kRowThreads * kVectorElements;
  // The first pieces stay in registers; each thread rereads of the rest only what it wrote itself.
  float kept[kKeptPieces][kVectorElements];
  float weights[kKeptPieces][kVectorElements];
  float sum = 0.0f;
  const auto add_piece = [&](int32_t index, float(&values)[kVectorElements]) {
    LoadEight(x, index, args.width, is_aligned, values);
    if (residual != nullptr) {
      float old[kVectorElements];
      LoadEight(residual, index, args.width, is_aligned, old);
#pragma unroll
      for (int i = 0; i < kVectorElements; ++i) values[i] = Widen(Narrow(old[i] + values[i]));
      StoreEight(values, index, args.width, is_aligned, residual);
    }
#pragma unroll
    for (int i = 0; i < kVectorElements; ++i) sum = __fmaf_rn(values[i], values[i], sum);
  };
  const auto store_piece = [&](int32_t index, float scale, float(&values)[kVectorElements],
                               const float(&weight)[kVectorElements]) {
#pragma unroll
    for (int i = 0; i < kVectorElements; ++i) {
      values[i] = ScaleByWeight(values[i], scale, weight[i]);
    }
    StoreEight(values, index, args.width, is_aligned, args.out + offset);
  };
#pragma unroll
  for (int piece = 0; piece < kKeptPieces; ++piece) {
    const int32_t index = first + piece * kStep;
    if (index >= args.width) continue;
    LoadEight(args.weight, index, args.width, is_aligned, weights[piece]);
    add_piece(index, kept[piece]);
  }
  for (int32_t index = first + kKeptPieces * kStep; index < args.width; index += kStep) {
    float values[kVectorElements];
    add_piece(index, values);
  }
  const float scale = InverseRms(BlockSum<kRowThreads>(sum), args.width, args.epsilon);
#pragma unroll
  for (int piece = 0; piece < kKeptPieces; ++piece) {
    const int32_t index = first + piece * kStep;
    if (index < args.width) store_piece(index, scale, kept[piece], weights[piece]);
  }
  const BFloat16* source = residual != nullptr ? residual : x;
  for (int32_t index = first + kKeptPieces * kStep; index < args.width; index += kStep) {
    float values[kVectorElements];
    LoadEight(source, index, args.width, is_aligned, values);
    LoadEight(args.weight, index, args.width, is_aligned, weights[0]);
    store_piece(index, scale, values, weights[0]);
  }
}

__global__ void __launch_bounds__(kHeadWarps* kWarpSize) QkNormKernel(QkNormArgs args) {
  const int32_t heads = args.shape.head_count + args.shape.kv_head_count;
  const int32_t task =
      static_cast<int32_t>(blockIdx.x) * kHeadWarps + static_cast<int32_t>(threadIdx.x) / kWarpSize;
  if (task >= args.rows * heads) return;
  const int32_t head = task % heads;
  const int32_t head_dim = args.shape.head_dim;
  BFloat16* x = args.qkv + int64_t{task / heads} * QkvWidth(args.shape) + int64_t{head} * head_dim;
  const BFloat16* weight = head < args.shape.head_count ? args.q_weight : args.k_weight;
  const int32_t lane = threadIdx.x % kWarpSize;
  float sum = 0.0f;
  for (int32_t i = lane; i < head_dim; i += kWarpSize) {
    const float value = Widen(x[i]);
    sum = __fmaf_rn(value, value, sum);
  }
  const float scale = InverseRms(WarpSum(sum), head_dim, args.epsilon);
  for (int32_t i = lane; i < head_dim; i += kWarpSize) {
    x[i] = Narrow(ScaleByWeight(Widen(x[i]), scale, Widen(weight[i])));
  }
}

// Eight pairs of one head: elements i .. i+7 and half + i ...
__device__ void RotateEight(const float* cos, const float* sin, int32_t i, int32_t head_dim,
                            BFloat16* head, BFloat16* cached) {
  const int32_t half = head_dim / 2;
  float low[kVectorElements];
  float high[kVectorElements];
  LoadEight(head, i, head_dim, true, low);
  LoadEight(head, half + i, head_dim, true, high);
#pragma unroll
  for (int j = 0; j < kVectorElements; ++j) {
    const float c = cos[i + j];
    const float s = sin[i + j];
    const float a = low[j];
    const float b = high[j];
    low[j] = __fmaf_rn(a, c, -(b * s));
    high[j] = __fmaf_rn(b, c, a * s);
  }
  StoreEight(low, i, head_dim, true, head);
  StoreEight(high, half + i, head_dim, true, head);
  if (cached != nullptr) {
    StoreEight(low, i, head_dim, true, cached);
    StoreEight(high, half + i, head_dim, true, cached);
  }
}

__global__ void __launch_bounds__(kRowThreads) RopeKernel(RopeArgs args) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const AttentionShape& shape = args.shape;
  const int32_t head_dim = shape.head_dim;
  const int64_t slot = args.kv_slots[row];
  BFloat16* qkv = args.qkv + int64_t{row} * QkvWidth(shape);
  // Elements of one head of a block; a block holds kv_head_count of them for K, then for V.
  const int64_t head_size = int64_t{kKvBlockTokens} * head_dim;
  BFloat16* keys = args.kv + (slot / kKvBlockTokens) * 2 * shape.kv_head_count * head_size +
                   (slot % kKvBlockTokens) * head_dim;
  BFloat16* values = keys + shape.kv_head_count * head_size;
  const int64_t table_row = int64_t{args.positions[row]} * (head_dim / 2);
  const int32_t per_head = head_dim / 2 / kVectorElements;
  const int32_t rotations = (shape.head_count + shape.kv_head_count) * per_head;
  for (int32_t task = static_cast<int32_t>(threadIdx.x); task < rotations; task += kRowThreads) {
    const int32_t head = task / per_head;
    const int32_t kv_head = head - shape.head_count;
    BFloat16* cached = slot >= 0 && kv_head >= 0 ? keys + kv_head * head_size : nullptr;
    RotateEight(args.table.cos + table_row, args.table.sin + table_row,
                task % per_head * kVectorElements, head_dim, qkv + int64_t{head} * head_dim,
                cached);
  }
  if (slot < 0) return;
  const BFloat16* v = qkv + int64_t{shape.head_count + shape.kv_head_count} * head_dim;
  const int32_t copies = shape.kv_head_count * head_dim / kVectorElements;
  for (int32_t task = static_cast<int32_t>(threadIdx.x); task < copies; task += kRowThreads) {
    const int32_t element = task * kVectorElements;
    const int32_t kv_head = element / head_dim;
    *reinterpret_cast<uint4*>(values + kv_head * head_size + element % head_dim) =
        *reinterpret_cast<const uint4*>(v + element);
  }
}

__global__ void __launch_bounds__(kRowThreads)
    SiluMulKernel(const BFloat16* gate_up, int32_t width, BFloat16* out, bool is_aligned) {
  const int32_t index =
      (static_cast<int32_t>(blockIdx.x) * kRowThreads + static_cast<int32_t>(threadIdx.x)) *
      kVectorElements;
  if (index >= width) return;
  const BFloat16* row = gate_up + int64_t{blockIdx.y} * 2 * width;
  float gate[kVectorElements];
  float up[kVectorElements];
  LoadEight(row, index, width, is_aligned, gate);
  LoadEight(row + width, index, width, is_aligned, up);
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    gate[i] = gate[i] * Reciprocal(1.0f + Exp2(gate[i] * -1.44269504f)) * up[i];
  }
  StoreEight(gate, index, width, is_aligned, out + int64_t{blockIdx.y} * width);
}

__global__ void __launch_bounds__(kRowThreads)
    GatherRowsKernel(const BFloat16* table, const int32_t* indices, int32_t width, BFloat16* out,
                     bool is_aligned) {
  const BFloat16* from = table + int64_t{indices[blockIdx.x]} * width;
  BFloat16* to = out + int64_t{blockIdx.x} * width;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (is_aligned) {
    for (int32_t i = thread * kVectorElements; i < width; i += kRowThreads * kVectorElements) {
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
    }
    return;
  }
  for (int32_t i = thread; i < width; i += kRowThreads) to[i] = from[i];
}

}  // namespace

cudaError_t RunRmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  const bool is_aligned = IsAligned(args.width, args.x, args.weight, args.out) &&
                          IsAligned(args.width, args.residual, nullptr, nullptr);
  RmsNormKernel<<<args.rows, kRowThreads, 0, stream>>>(args, is_aligned);
  return cudaGetLastError();
}

cudaError_t RunQkNorm(const QkNormArgs& args, cudaStream_t stream) {
  const int32_t tasks = args.rows * (args.shape.head_count + args.shape.kv_head_count);
  const int32_t blocks = (tasks + kHeadWarps - 1) / kHeadWarps;
  QkNormKernel<<<blocks, kHeadWarps * kWarpSize, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t RunRopeAndStoreKv(const RopeArgs& args, cudaStream_t stream) {
  RopeKernel<<<args.rows, kRowThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t RunSiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out,
                       cudaStream_t stream) {
  constexpr int32_t kBlockElements = kRowThreads * kVectorElements;
  const dim3 grid((width + kBlockElements - 1) / kBlockElements, rows);
  SiluMulKernel<<<grid, kRowThreads, 0, stream>>>(gate_up, width, out,
                                                  IsAligned(width, gate_up, out, nullptr));
  return cudaGetLastError();
}

cudaError_t RunGatherRows(const BFloat16* table, const int32_t* indices, int32_t rows,
                          int32_t width, BFloat16* out, cudaStream_t stream) {
  GatherRowsKernel<<<rows, kRowThreads, 0, stream>>>(table, indices, width, out,
                                                     IsAligned(width, table, out, nullptr));
  return cudaGetLastError();
}

}  // namespace selfsame::cuda
