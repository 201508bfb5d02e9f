#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/split_sum.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kRopeThreads = 128;
constexpr int32_t kRowStep = kRowThreads * kVectorElements;  // elements that a block takes at once

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

// Eight bf16 of a row, two to a word.
struct Packed {
  uint32_t words[kVectorElements / 2];
};

__device__ float Element(const Packed& packed, int i) {
  const uint32_t word = packed.words[i / 2];
  return i % 2 == 0 ? Widen(word & 0xffffu) : __uint_as_float(word & 0xffff0000u);
}

// Elements past the end are 0.
template <bool kAligned>
__device__ Packed LoadPacked(const BFloat16* row, int32_t index, int32_t width) {
  Packed packed = {};
  if constexpr (kAligned) {
    if (index >= width) return packed;
    const uint4 words = *reinterpret_cast<const uint4*>(row + index);
    packed.words[0] = words.x;
    packed.words[1] = words.y;
    packed.words[2] = words.z;
    packed.words[3] = words.w;
  } else {
#pragma unroll
    for (int i = 0; i < kVectorElements; ++i) {
      if (index + i < width) packed.words[i / 2] |= uint32_t{row[index + i].bits} << i % 2 * 16;
    }
  }
  return packed;
}

template <bool kAligned>
__device__ void StorePacked(const Packed& packed, int32_t index, int32_t width, BFloat16* row) {
  const uint32_t(&words)[kVectorElements / 2] = packed.words;
  if constexpr (kAligned) {
    *reinterpret_cast<uint4*>(row + index) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kVectorElements; ++i) {
      if (index + i < width)
        row[index + i].bits = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    }
  }
}

__device__ Packed AddPacked(const Packed& a, const Packed& b) {
  Packed sum;
#pragma unroll
  for (int i = 0; i < kVectorElements; i += 2) {
    sum.words[i / 2] =
        NarrowPair(Element(a, i) + Element(b, i), Element(a, i + 1) + Element(b, i + 1));
  }
  return sum;
}

// bf16(bf16(x * scale) * weight).
__device__ Packed ScalePacked(const Packed& x, float scale, const Packed& weight) {
  Packed result;
#pragma unroll
  for (int i = 0; i < kVectorElements; i += 2) {
    const uint32_t scaled = NarrowPair(Element(x, i) * scale, Element(x, i + 1) * scale);
    result.words[i / 2] =
        NarrowPair(Widen(scaled & 0xffffu) * Element(weight, i),
                   __uint_as_float(scaled & 0xffff0000u) * Element(weight, i + 1));
  }
  return result;
}

// Eight elements of a product, at `offset` of each slice.
template <int kSplits>
__device__ Packed LoadProduct(const SplitProduct& product, int64_t offset) {
  float4 sums[2];
  SumSlices<kSplits>(product, offset, sums);
  const auto& [low, high] = sums;
  return {{NarrowPair(low.x, low.y), NarrowPair(low.z, low.w), NarrowPair(high.x, high.y),
           NarrowPair(high.z, high.w)}};
}

// What a norm is taken of: elements [index, index + 8) of the block's row, those past the end 0.
template <bool kAligned, int kSplits>
__device__ Packed LoadInput(const RmsNormArgs& args, int64_t row_offset, int32_t index) {
  if constexpr (kSplits == 0) {
    return LoadPacked<kAligned>(args.x + row_offset, index, args.width);
  } else {
    if (index >= args.width) return {};
    return LoadProduct<kSplits>(args.product, row_offset + index);
  }
}

// A thread keeps its first kPieces pieces of 8 elements, as bf16, so that a processor holds many
// rows, and loads all of them before it uses one. Of wider rows it rereads only what it wrote
// itself. kSplits: of the product that stands in for x; 0: none does.
template <int kPieces, bool kAligned, int kSplits = 0>
__global__ void __launch_bounds__(kRowThreads) RmsNormKernel(RmsNormArgs args) {
  const int64_t offset = int64_t{blockIdx.x} * args.width;
  BFloat16* residual = args.residual == nullptr ? nullptr : args.residual + offset;
  BFloat16* out = args.out + offset;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kVectorElements;
  Packed kept[kPieces];
  Packed olds[kPieces];
  Packed weights[kPieces];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int32_t index = first + piece * kRowStep;
    kept[piece] = LoadInput<kAligned, kSplits>(args, offset, index);
    if (residual != nullptr) olds[piece] = LoadPacked<kAligned>(residual, index, args.width);
    weights[piece] = LoadPacked<kAligned>(args.weight, index, args.width);
  }
  float sum = 0.0f;
  const auto add_piece = [&](int32_t index, const Packed& old, Packed& value) {
    if (residual != nullptr) {
      value = AddPacked(old, value);
      StorePacked<kAligned>(value, index, args.width, residual);
    }
#pragma unroll
    for (int i = 0; i < kVectorElements; ++i) {
      const float element = Element(value, i);
      sum = __fmaf_rn(element, element, sum);
    }
  };
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int32_t index = first + piece * kRowStep;
    if (index < args.width) add_piece(index, olds[piece], kept[piece]);
  }
#pragma unroll 1
  for (int32_t index = first + kPieces * kRowStep; index < args.width; index += kRowStep) {
    Packed value = LoadInput<kAligned, kSplits>(args, offset, index);
    Packed old;
    if (residual != nullptr) old = LoadPacked<kAligned>(residual, index, args.width);
    add_piece(index, old, value);
  }
  const float scale = InverseRms(BlockSum<kRowThreads>(sum), args.width, args.epsilon);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int32_t index = first + piece * kRowStep;
    if (index >= args.width) continue;
    StorePacked<kAligned>(ScalePacked(kept[piece], scale, weights[piece]), index, args.width, out);
  }
  const BFloat16* source = residual != nullptr ? residual : args.x + offset;
#pragma unroll 1
  for (int32_t index = first + kPieces * kRowStep; index < args.width; index += kRowStep) {
    const Packed value = LoadPacked<kAligned>(source, index, args.width);
    const Packed weight = LoadPacked<kAligned>(args.weight, index, args.width);
    StorePacked<kAligned>(ScalePacked(value, scale, weight), index, args.width, out);
  }
}

__device__ void LoadAngles(const float* table, float (&out)[kVectorElements]) {
#pragma unroll
  for (int i = 0; i < kVectorElements; i += 4) {
    const float4 angles = *reinterpret_cast<const float4*>(table + i);
    out[i] = angles.x;
    out[i + 1] = angles.y;
    out[i + 2] = angles.z;
    out[i + 3] = angles.w;
  }
}

// Norms the sixteen elements that each of the head's threads has: head_dim / 16 neighbouring lanes,
// a power of two.
__device__ void NormPairs(const BFloat16* weight, float epsilon, int32_t i, int32_t head_dim,
                          float (&low)[kVectorElements], float (&high)[kVectorElements]) {
  const int32_t threads = head_dim / (2 * kVectorElements);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
  const unsigned lanes = kAllLanes >> (kWarpSize - threads) << lane / threads * threads;
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kVectorElements; ++j) sum = __fmaf_rn(low[j], low[j], sum);
#pragma unroll
  for (int j = 0; j < kVectorElements; ++j) sum = __fmaf_rn(high[j], high[j], sum);
  for (int32_t offset = threads / 2; offset > 0; offset /= 2) {
    sum = sum + __shfl_xor_sync(lanes, sum, offset);
  }
  const float scale = InverseRms(sum, head_dim, epsilon);
  float low_weight[kVectorElements];
  float high_weight[kVectorElements];
  LoadEight(weight, i, head_dim, true, low_weight);
  LoadEight(weight, head_dim / 2 + i, head_dim, true, high_weight);
#pragma unroll
  for (int j = 0; j < kVectorElements; ++j) {
    low[j] = Widen(Narrow(Widen(Narrow(low[j] * scale)) * low_weight[j]));
    high[j] = Widen(Narrow(Widen(Narrow(high[j] * scale)) * high_weight[j]));
  }
}

// Eight pairs of one head: elements i .. i+7 and half + i ... `weight`: of the norm.
template <bool kHasNorm>
__device__ void RotateEight(const RopeArgs& args, int64_t table_row, const BFloat16* weight,
                            int32_t i, BFloat16* head, BFloat16* cached) {
  const int32_t head_dim = args.shape.head_dim;
  const int32_t half = head_dim / 2;
  float low[kVectorElements];
  float high[kVectorElements];
  float c[kVectorElements];
  float s[kVectorElements];
  LoadEight(head, i, head_dim, true, low);
  LoadEight(head, half + i, head_dim, true, high);
  LoadAngles(args.table.cos + table_row + i, c);
  LoadAngles(args.table.sin + table_row + i, s);
  if constexpr (kHasNorm) NormPairs(weight, args.norm.epsilon, i, head_dim, low, high);
#pragma unroll
  for (int j = 0; j < kVectorElements; ++j) {
    const float a = low[j];
    const float b = high[j];
    low[j] = __fmaf_rn(a, c[j], -(b * s[j]));
    high[j] = __fmaf_rn(b, c[j], a * s[j]);
  }
  StoreEight(low, i, head_dim, true, head);
  StoreEight(high, half + i, head_dim, true, head);
  if (cached != nullptr) {
    StoreEight(low, i, head_dim, true, cached);
    StoreEight(high, half + i, head_dim, true, cached);
  }
}

// `blocks` blocks for each row, one task for each thread: first the rotations of its q and k heads,
// then the copies of its v heads, eight pairs or elements each.
template <bool kHasNorm>
__global__ void __launch_bounds__(kRopeThreads) RopeKernel(RopeArgs args, int32_t blocks) {
  const int32_t row = static_cast<int32_t>(blockIdx.x) / blocks;
  const AttentionShape& shape = args.shape;
  const int32_t head_dim = shape.head_dim;
  const int32_t task =
      static_cast<int32_t>(blockIdx.x) % blocks * kRopeThreads + static_cast<int32_t>(threadIdx.x);
  const int32_t per_head = head_dim / 2 / kVectorElements;
  const int32_t rotations = (shape.head_count + shape.kv_head_count) * per_head;
  const int64_t slot = args.kv_slots[row];
  BFloat16* qkv = args.qkv + int64_t{row} * QkvWidth(shape);
  // Elements of one head of a block; a block holds kv_head_count of them for K, then for V.
  const int64_t head_size = int64_t{kKvBlockTokens} * head_dim;
  BFloat16* keys = args.kv + (slot / kKvBlockTokens) * 2 * shape.kv_head_count * head_size +
                   (slot % kKvBlockTokens) * head_dim;
  if (task < rotations) {
    const int32_t head = task / per_head;
    const int32_t kv_head = head - shape.head_count;
    const int64_t table_row = int64_t{args.positions[row]} * (head_dim / 2);
    RotateEight<kHasNorm>(args, table_row, kv_head < 0 ? args.norm.q_weight : args.norm.k_weight,
                          task % per_head * kVectorElements, qkv + int64_t{head} * head_dim,
                          slot >= 0 && kv_head >= 0 ? keys + kv_head * head_size : nullptr);
    return;
  }
  const int32_t element = (task - rotations) * kVectorElements;
  const int32_t kv_head = element / head_dim;
  if (slot < 0 || kv_head >= shape.kv_head_count) return;
  const BFloat16* v = qkv + int64_t{shape.head_count + shape.kv_head_count} * head_dim;
  BFloat16* values = keys + shape.kv_head_count * head_size;
  *reinterpret_cast<uint4*>(values + kv_head * head_size + element % head_dim) =
      *reinterpret_cast<const uint4*>(v + element);
}

// `blocks` blocks for each row.
__global__ void __launch_bounds__(kRowThreads)
    SiluMulKernel(const BFloat16* gate_up, int32_t width, BFloat16* out, bool is_aligned,
                  int32_t blocks) {
  const int64_t row_index = static_cast<int32_t>(blockIdx.x) / blocks;
  const int32_t index = (static_cast<int32_t>(blockIdx.x) % blocks * kRowThreads +
                         static_cast<int32_t>(threadIdx.x)) *
                        kVectorElements;
  if (index >= width) return;
  const BFloat16* row = gate_up + row_index * 2 * width;
  float gate[kVectorElements];
  float up[kVectorElements];
  LoadEight(row, index, width, is_aligned, gate);
  LoadEight(row + width, index, width, is_aligned, up);
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    gate[i] = gate[i] * Reciprocal(1.0f + Exp2(gate[i] * -1.44269504f)) * up[i];
  }
  StoreEight(gate, index, width, is_aligned, out + row_index * width);
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

using NormKernel = void (*)(RmsNormArgs);

template <int kSplits>
NormKernel AlignedNorm(int32_t width) {
  if (width <= kRowStep) return RmsNormKernel<1, true, kSplits>;
  return width <= 2 * kRowStep ? RmsNormKernel<2, true, kSplits> : RmsNormKernel<4, true, kSplits>;
}

bool IsAligned(const RmsNormArgs& args) {
  return IsAligned(args.width, args.x, args.weight, args.out) &&
         IsAligned(args.width, args.residual, nullptr, nullptr);
}

}  // namespace

bool TakesProduct(const RmsNormArgs& args) { return args.residual != nullptr && IsAligned(args); }

cudaError_t RunRmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  NormKernel kernel = IsAligned(args) ? AlignedNorm<0>(args.width) : RmsNormKernel<1, false>;
  if (args.product.partials != nullptr) {
    if (!TakesProduct(args)) return cudaErrorInvalidValue;
    switch (args.product.splits) {
      case 2:
        kernel = AlignedNorm<2>(args.width);
        break;
      case 3:
        kernel = AlignedNorm<3>(args.width);
        break;
      case 4:
        kernel = AlignedNorm<4>(args.width);
        break;
      default:
        return cudaErrorInvalidValue;
    }
  }
  kernel<<<args.rows, kRowThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

bool TakesQkNorm(const AttentionShape& shape) {
  const int32_t head_dim = shape.head_dim;
  return head_dim >= 16 && head_dim <= 512 && (head_dim & (head_dim - 1)) == 0;
}

cudaError_t RunRopeAndStoreKv(const RopeArgs& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  const int32_t pairs = (shape.head_count + shape.kv_head_count) * shape.head_dim / 2;
  const int32_t tasks = (pairs + shape.kv_head_count * shape.head_dim) / kVectorElements;
  const int32_t blocks = (tasks + kRopeThreads - 1) / kRopeThreads;
  const auto kernel = args.norm.q_weight != nullptr ? RopeKernel<true> : RopeKernel<false>;
  kernel<<<args.rows * blocks, kRopeThreads, 0, stream>>>(args, blocks);
  return cudaGetLastError();
}

cudaError_t RunSiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out,
                       cudaStream_t stream) {
  const int32_t blocks = (width + kRowStep - 1) / kRowStep;
  SiluMulKernel<<<rows * blocks, kRowThreads, 0, stream>>>(
      gate_up, width, out, IsAligned(width, gate_up, out, nullptr), blocks);
  return cudaGetLastError();
}

cudaError_t RunGatherRows(const BFloat16* table, const int32_t* indices, int32_t rows,
                          int32_t width, BFloat16* out, cudaStream_t stream) {
  GatherRowsKernel<<<rows, kRowThreads, 0, stream>>>(table, indices, width, out,
                                                     IsAligned(width, table, out, nullptr));
  return cudaGetLastError();
}

}  // namespace selfsame::cuda
