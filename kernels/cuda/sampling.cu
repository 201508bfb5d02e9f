#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/sampling_select.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kSliceThreads = 256;
constexpr int kSliceWarps = kSliceThreads / kWarpSize;
// Four logits for each lane of a warp.
constexpr int32_t kStripTokens = kWarpSize * kQuad;
constexpr int kStrips = kSliceTokens / kStripTokens;
// Rows above which a block of ChooseKernel is small, so that the device holds more rows at a time.
constexpr int32_t kFewRows = 128;
constexpr int kManyRowsThreads = 256;
// No noise is larger: u is at most 1 - 2^-24. With room for rounding.
constexpr float kNoiseBound = 16.7f;
constexpr float kMassOne = 0x1p40f;

__device__ float WarpMax(float value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// One slice of one row for each warp.
template <bool kAligned>
__global__ void __launch_bounds__(kSliceThreads)
    SumSlicesKernel(SampleCall call, int32_t slice_count) {
  const int32_t task = static_cast<int32_t>(blockIdx.x) * kSliceWarps +
                       static_cast<int32_t>(threadIdx.x) / kWarpSize;
  if (task >= call.rows * slice_count) return;
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
  const int32_t first = task % slice_count * kSliceTokens + lane * kQuad;
  const float* logits = call.logits + int64_t{task / slice_count} * call.vocab;
  float values[kStrips][kQuad];
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    LoadQuad<kAligned>(logits, first + strip * kStripTokens, call.vocab, values[strip]);
  }
  float max = NegativeInfinity();  // fmaxf passes over NaN
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) max = fmaxf(max, values[strip][i]);
  }
  max = WarpMax(max);
  if (max > kLargest) {
    max = kLargest;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) values[strip][i] = Finite(values[strip][i]);
    }
  }
  float sums[kQuad] = {};
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      sums[i] = sums[i] + ExpOfNegative(values[strip][i] - max);
    }
  }
  const float sum = WarpSum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (lane == 0) call.slices[task] = {max + 0.0f, sum};
}

// The largest logit of slice `slice` is `max`: the lowest token that has it. All lanes of a warp
// call and get the result.
template <bool kAligned>
__device__ int32_t FindInSlice(const Row& row, int32_t slice, float max) {
  const int32_t first =
      slice * kSliceTokens + static_cast<int32_t>(threadIdx.x) % kWarpSize * kQuad;
  float values[kStrips][kQuad];
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    LoadQuad<kAligned>(row.logits, first + strip * kStripTokens, row.vocab, values[strip]);
  }
  auto lowest = static_cast<uint32_t>(row.vocab);
#pragma unroll
  for (int strip = kStrips - 1; strip >= 0; --strip) {
#pragma unroll
    for (int i = kQuad - 1; i >= 0; --i) {
      if (Finite(values[strip][i]) != max) continue;
      lowest = static_cast<uint32_t>(first + strip * kStripTokens + i);
    }
  }
  return static_cast<int32_t>(__reduce_min_sync(kAllLanes, lowest));
}

// The row's largest logit, its token, and log of the sum of exp(logit - max), for the whole block.
// Warp 0 finds the token, warp 1 adds.
template <bool kAligned>
__device__ void CombineSlices(const Row& row, const SliceSum* slices, int32_t slice_count,
                              Shared& shared) {
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpSize;
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
  if (warp < 2) {
    uint64_t best = 0;
    for (int32_t slice = lane; slice < slice_count; slice += kWarpSize) {
      const uint64_t key = OrderKey(slices[slice].max, slice);
      best = key > best ? key : best;
    }
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      const uint64_t other = __shfl_xor_sync(kAllLanes, best, offset);
      best = other > best ? other : best;
    }
    const float max = FromOrderedBits(static_cast<uint32_t>(best >> 32));
    if (warp == 0) {
      const int32_t token = FindInSlice<kAligned>(row, TokenOf(best), max);
      if (lane == 0) shared.max_token = token;
    } else {
      float total = 0.0f;
      for (int32_t slice = lane; slice < slice_count; slice += kWarpSize) {
        const SliceSum part = slices[slice];
        total = total + part.sum * ExpOfNegative(part.max - max);
      }
      total = WarpSum(total);
      if (lane == 0) {
        shared.max = max;
        shared.logarithm = Log(total);
      }
    }
  }
  __syncthreads();
}

__device__ uint64_t MassOf(const Row& row, float logit) {
  const float scaled = Exp(__fdiv_rn(logit - row.max, row.temperature)) * kMassOne;
  return static_cast<uint64_t>(static_cast<int64_t>(scaled));
}

struct CountWeight {
  __device__ uint64_t operator()(const Row&, float) const { return 1; }
};
struct MassWeight {
  __device__ uint64_t operator()(const Row& row, float logit) const { return MassOf(row, logit); }
};

template <bool kAligned>
__device__ uint64_t SumMass(const Row& row, uint64_t cutoff, Shared& shared) {
  uint64_t sum = 0;
  ForTokens<kAligned>(row, [&](int32_t token, float logit) {
    if (OrderKey(logit, token) >= cutoff) sum += MassOf(row, logit);
  });
  return BlockReduce(sum, shared, [](uint64_t a, uint64_t b) { return a + b; });
}

__device__ float Noise(uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
  return -Log(-Log(u));
}

// The smallest key of the tokens that min-p keeps. All with a larger key are kept too, for a
// rounded difference never falls where the logit rises.
template <bool kAligned>
__device__ uint64_t MinPCutoff(const Row& row, float min_p, Shared& shared) {
  const float lowest = row.temperature * Log(min_p);
  uint64_t cutoff = ~uint64_t{0};
  ForTokens<kAligned>(row, [&](int32_t token, float logit) {
    if (logit - row.max < lowest) return;
    const uint64_t key = OrderKey(logit, token);
    cutoff = key < cutoff ? key : cutoff;
  });
  return BlockMin(cutoff, shared);
}

// The token with the largest (logit - max) / temperature + noise among those that pass `cutoff`.
template <bool kAligned>
__device__ int32_t FindNoisyMax(const Row& row, const DeviceSampleRow& params, uint64_t cutoff,
                                int32_t max_token, Shared& shared) {
  const NoiseKey noise_key = {
      static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32),
      static_cast<uint32_t>(params.position), static_cast<uint32_t>(params.choice_index)};
  const auto max_id = static_cast<uint32_t>(max_token);
  float best = Noise(PhiloxWord(Philox(max_id / kQuad, noise_key), max_id % kQuad));
  uint64_t best_key = OrderKey(best + 0.0f, max_token);
  // No noise lifts a token whose difference is smaller to the best so far.
  float lowest = (best - kNoiseBound) * row.temperature;
  ForQuads<kAligned>(row, [&](int32_t token, const float(&logits)[kQuad]) {
    const float largest = fmaxf(fmaxf(logits[0], logits[1]), fmaxf(logits[2], logits[3]));
    if (!(largest - row.max >= lowest)) return;
    const uint4 words = Philox(static_cast<uint32_t>(token) / kQuad, noise_key);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float logit = Finite(logits[i]);
      if (logit - row.max < lowest || OrderKey(logit, token + i) < cutoff) continue;
      const float scaled = __fdiv_rn(logit - row.max, row.temperature);
      const float noisy = scaled + Noise(PhiloxWord(words, i)) + 0.0f;
      const uint64_t key = OrderKey(noisy, token + i);
      if (key <= best_key) continue;
      best_key = key;
      best = noisy;
      lowest = (best - kNoiseBound) * row.temperature;
    }
  });
  return TokenOf(BlockMax(best_key, shared));
}

template <bool kAligned>
__device__ int32_t ChooseToken(const Row& row, const DeviceSampleRow& params, int32_t max_token,
                               Shared& shared) {
  if (params.temperature <= 0.0f) return max_token;
  uint64_t cutoff = 0;
  if (params.top_k > 0 && params.top_k < row.vocab) {
    cutoff = SelectCutoff<kAligned>(row, cutoff, params.top_k, CountWeight(), shared);
  }
  if (params.min_p > 0.0f) {
    const uint64_t min_p_cutoff = MinPCutoff<kAligned>(row, params.min_p, shared);
    cutoff = min_p_cutoff > cutoff ? min_p_cutoff : cutoff;
  }
  if (params.top_p < 1.0f) {
    const uint64_t total = SumMass<kAligned>(row, cutoff, shared);
    const double share = ceil(static_cast<double>(params.top_p) * static_cast<double>(total));
    const auto target = share < 1.0 ? uint64_t{1} : static_cast<uint64_t>(share);
    cutoff =
        SelectCutoff<kAligned>(row, cutoff, target < total ? target : total, MassWeight(), shared);
  }
  return FindNoisyMax<kAligned>(row, params, cutoff, max_token, shared);
}

// The row's first `count` tokens in decreasing order of key.
template <bool kAligned>
__device__ void WriteTop(const Row& row, int32_t count, TokenLogprob* out, Shared& shared) {
  const uint64_t cutoff = SelectCutoff<kAligned>(row, 0, count, CountWeight(), shared);
  if (threadIdx.x == 0) shared.top_size = 0;
  __syncthreads();
  ForTokens<kAligned>(row, [&](int32_t token, float logit) {
    const uint64_t key = OrderKey(logit, token);
    if (key >= cutoff) shared.top_keys[atomicAdd(&shared.top_size, 1)] = key;
  });
  __syncthreads();
  if (static_cast<int32_t>(threadIdx.x) >= count) return;
  const uint64_t key = shared.top_keys[threadIdx.x];
  int32_t place = 0;
  for (int32_t i = 0; i < count; ++i) place += shared.top_keys[i] > key ? 1 : 0;
  const float logit = FromOrderedBits(static_cast<uint32_t>(key >> 32));
  out[place] = {TokenOf(key), (logit - row.max) - shared.logarithm};
}

__device__ float Edit(float logit, const LogitEdit& edit) {
  const float biased = Finite(logit) + edit.bias;
  const float repeated =
      biased > 0.0f ? __fdiv_rn(biased, edit.repetition) : biased * edit.repetition;
  return repeated - edit.penalty;
}

template <bool kAligned>
__device__ uint64_t FindMax(const Row& row, Shared& shared) {
  float max = NegativeInfinity();
  int32_t max_token = 0;
  ForTokens<kAligned>(row, [&](int32_t token, float logit) {
    if (logit <= max) return;
    max = logit;
    max_token = token;
  });
  return BlockMax(OrderKey(max, max_token), shared);
}

// Makes the row's edits, in device memory that the caller owns; only this block touches the row.
__device__ void MakeEdits(const SampleCall& call, const DeviceSampleRow& params, const Row& row) {
  auto* const logits = const_cast<float*>(row.logits);
  const LogitEdit* const edits = call.edits + params.first_edit;
  float* const raw_logits = call.raw_logits + params.first_edit;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < params.edit_count;
       i += static_cast<int32_t>(blockDim.x)) {
    const LogitEdit edit = edits[i];
    raw_logits[i] = logits[edit.token_id];
    logits[edit.token_id] = Edit(raw_logits[i], edit);
  }
  __syncthreads();
}

// Gives the edited logits their old values again.
__device__ void UndoEdits(const SampleCall& call, const DeviceSampleRow& params, const Row& row) {
  auto* const logits = const_cast<float*>(row.logits);
  const LogitEdit* const edits = call.edits + params.first_edit;
  const float* const raw_logits = call.raw_logits + params.first_edit;
  __syncthreads();
  for (auto i = static_cast<int32_t>(threadIdx.x); i < params.edit_count;
       i += static_cast<int32_t>(blockDim.x)) {
    logits[edits[i].token_id] = raw_logits[i];
  }
  __syncthreads();
}

// The token of a row that has finite logits and none given.
template <bool kAligned>
__device__ int32_t ChooseFromRow(const SampleCall& call, const DeviceSampleRow& params, Row row,
                                 Shared& shared) {
  int32_t max_token = shared.max_token;
  if (params.edit_count > 0) {
    MakeEdits(call, params, row);
    const uint64_t max_key = FindMax<kAligned>(row, shared);
    row.max = FromOrderedBits(static_cast<uint32_t>(max_key >> 32));
    max_token = TokenOf(max_key);
  }
  const int32_t token_id =
      row.max == NegativeInfinity() ? 0 : ChooseToken<kAligned>(row, params, max_token, shared);
  if (params.edit_count > 0) UndoEdits(call, params, row);
  return token_id;
}

// One row for each block.
template <bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) ChooseKernel(SampleCall call, int32_t slice_count) {
  __shared__ Shared shared;
  const DeviceSampleRow params = call.params[blockIdx.x];
  const int32_t top_count = min(params.top_count, call.vocab);
  TokenLogprob* const top = call.top + int64_t{blockIdx.x} * kMaxTopLogprobs;
  Row row = {call.logits + int64_t{blockIdx.x} * call.vocab, call.vocab, 0.0f, params.temperature};
  CombineSlices<kAligned>(row, call.slices + int64_t{blockIdx.x} * slice_count, slice_count,
                          shared);
  row.max = shared.max;
  TokenLogprob result = {max(params.given_token, 0), NegativeInfinity()};
  if (row.max != NegativeInfinity()) {
    if (params.given_token < 0) {
      result.token_id = ChooseFromRow<kAligned>(call, params, row, shared);
    }
    result.logprob = (Finite(row.logits[result.token_id]) - row.max) - shared.logarithm;
    if (top_count > 0) WriteTop<kAligned>(row, top_count, top, shared);
  } else if (static_cast<int32_t>(threadIdx.x) < top_count) {
    top[threadIdx.x] = {static_cast<int32_t>(threadIdx.x), NegativeInfinity()};
  }
  if (threadIdx.x == 0) call.out[blockIdx.x] = result;
}

template <bool kAligned>
cudaError_t Run(const SampleCall& call, cudaStream_t stream) {
  const int32_t slice_count = (call.vocab + kSliceTokens - 1) / kSliceTokens;
  const int32_t blocks = (call.rows * slice_count + kSliceWarps - 1) / kSliceWarps;
  SumSlicesKernel<kAligned><<<blocks, kSliceThreads, 0, stream>>>(call, slice_count);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const int threads = call.rows <= kFewRows ? kMaxThreads : kManyRowsThreads;
  ChooseKernel<kAligned><<<call.rows, threads, 0, stream>>>(call, slice_count);
  return cudaGetLastError();
}

}  // namespace

cudaError_t RunSample(const SampleCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  if (call.vocab > kMaxVocab) return cudaErrorInvalidValue;
  const bool is_aligned =
      call.vocab % kQuad == 0 && reinterpret_cast<uintptr_t>(call.logits) % sizeof(float4) == 0;
  return is_aligned ? Run<true>(call, stream) : Run<false>(call, stream);
}

}  // namespace selfsame::cuda
