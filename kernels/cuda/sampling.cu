#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/sampling_candidates.cuh"
#include "kernels/cuda/sampling_noise.cuh"
#include "kernels/cuda/sampling_row.cuh"
#include "kernels/cuda/sampling_select.cuh"

namespace selfsame::cuda {
namespace {

constexpr int kSliceThreads = 256;
constexpr int kSliceWarps = kSliceThreads / kWarpSize;
// Rows above which a block of ChooseKernel is small, so that the device holds more rows at a time.
constexpr int32_t kFewRows = 128;
constexpr int kManyRowsThreads = 256;
__device__ float WarpMax(float value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

__device__ float LargestOf(const float (&values)[kStrips][kQuad]) {
  float max = NegativeInfinity();  // fmaxf passes over NaN
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) max = fmaxf(max, values[strip][i]);
  }
  return max;
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
  float max = WarpMax(LargestOf(values));
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

// The key of the largest of max_of(slice), with the slice's number for a token. All lanes of a warp
// call and get the result.
template <typename MaxOf>
__device__ uint64_t BestSlice(int32_t slice_count, const MaxOf& max_of) {
  uint64_t best = 0;
  for (int32_t slice = static_cast<int32_t>(threadIdx.x) % kWarpSize; slice < slice_count;
       slice += kWarpSize) {
    const uint64_t key = OrderKey(max_of(slice), slice);
    best = key > best ? key : best;
  }
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, best, offset);
    best = other > best ? other : best;
  }
  return best;
}

// One warp: the row's largest logit and its token.
template <bool kAligned, typename MaxOf>
__device__ void FindMax(const Row& row, int32_t slice_count, const MaxOf& max_of, Shared& shared) {
  const uint64_t best = BestSlice(slice_count, max_of);
  const int32_t token = FindInSlice<kAligned>(row, TokenOf(best), LogitOf(best));
  if (threadIdx.x % kWarpSize != 0) return;
  shared.max = LogitOf(best);
  shared.max_token = token;
}

// The row's largest logit, its token, and log of the sum of exp(logit - max), for the whole block.
template <bool kAligned>
__device__ void CombineSlices(const Row& row, const SliceSum* slices, int32_t slice_count,
                              Shared& shared) {
  const auto max_of = [slices](int32_t slice) { return slices[slice].max; };
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpSize;
  if (warp == 0) FindMax<kAligned>(row, slice_count, max_of, shared);
  if (warp == 1) {
    const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
    const float max = LogitOf(BestSlice(slice_count, max_of));
    float total = 0.0f;
    for (int32_t slice = lane; slice < slice_count; slice += kWarpSize) {
      total = total + slices[slice].sum * ExpOfNegative(slices[slice].max - max);
    }
    total = WarpSum(total);
    if (lane == 0) shared.logarithm = Log(total);
  }
  __syncthreads();
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

__device__ bool HasTopK(const Row& row, const DeviceSampleRow& params) {
  return params.top_k > 0 && params.top_k < row.vocab;
}

// The filters on a list of candidates: how many of the first ones they keep. -1 if the list has not
// all that are kept.
template <bool kAligned>
__device__ int32_t CountKept(const Row& row, const DeviceSampleRow& params, int32_t slice_count,
                             Shared& shared) {
  const bool has_top_k = HasTopK(row, params);
  const int32_t rank =
      has_top_k && params.top_k <= slice_count ? params.top_k : max(slice_count * 3 / 4, 1);
  if (!ListCandidates<kAligned>(row, slice_count, rank, shared)) return -1;
  int32_t kept = shared.candidate_count;
  bool is_complete = false;  // all tokens that are kept so far are in the list
  if (has_top_k) {
    if (kept < params.top_k) return -1;
    kept = params.top_k;
    is_complete = true;
  }
  if (params.min_p > 0.0f) {
    const int32_t above = CountAbove(row, row.temperature * Log(params.min_p), kept, shared);
    is_complete = is_complete || above < kept;
    if (!is_complete) return -1;
    kept = above;
  }
  if (params.top_p >= 1.0f) return is_complete ? kept : -1;
  const uint64_t total = is_complete ? 0 : SumMass<kAligned>(row, 0, shared);
  return CountMass(row, params.top_p, total, kept, shared);
}

// The filters on any row, as a key that the tokens that are kept pass.
template <bool kAligned>
__device__ uint64_t FindCutoff(const Row& row, const DeviceSampleRow& params, Shared& shared) {
  uint64_t cutoff = 0;
  if (HasTopK(row, params)) {
    cutoff = SelectCutoff<kAligned>(row, cutoff, params.top_k, CountWeight(), shared);
  }
  if (params.min_p > 0.0f) {
    const uint64_t min_p_cutoff = MinPCutoff<kAligned>(row, params.min_p, shared);
    cutoff = min_p_cutoff > cutoff ? min_p_cutoff : cutoff;
  }
  if (params.top_p < 1.0f) {
    const uint64_t target = TargetMass(params.top_p, SumMass<kAligned>(row, cutoff, shared));
    cutoff = SelectCutoff<kAligned>(row, cutoff, target, MassWeight(), shared);
  }
  return cutoff;
}

// `slice_maxima` are those of the row. REQUIRES: temperature > 0.
template <bool kAligned>
__device__ int32_t ChooseWithNoise(const Row& row, const DeviceSampleRow& params,
                                   int32_t slice_count, int32_t max_token, Shared& shared) {
  uint64_t cutoff = 0;
  if (HasTopK(row, params) || params.min_p > 0.0f || params.top_p < 1.0f) {
    const int32_t kept = CountKept<kAligned>(row, params, slice_count, shared);
    if (kept > 0) return FindNoisyCandidate(row, params, kept, shared);
    cutoff = FindCutoff<kAligned>(row, params, shared);
  }
  return FindNoisyMax<kAligned>(row, params, cutoff, max_token, shared);
}

__device__ void LoadSliceMaxima(const SliceSum* slices, int32_t slice_count, Shared& shared) {
  for (auto slice = static_cast<int32_t>(threadIdx.x); slice < slice_count;
       slice += static_cast<int32_t>(blockDim.x)) {
    shared.slice_maxima[slice] = slices[slice].max;
  }
  __syncthreads();
}

// The row's first `count` tokens in decreasing order of key.
template <bool kAligned>
__device__ void WriteTop(const Row& row, const SliceSum* slices, int32_t slice_count, int32_t count,
                         TokenLogprob* out, Shared& shared) {
  LoadSliceMaxima(slices, slice_count, shared);
  const int32_t rank = min(count, slice_count);
  bool is_listed = ListCandidates<kAligned>(row, slice_count, rank, shared);
  is_listed = is_listed && shared.candidate_count >= count;
  __syncthreads();
  if (!is_listed) {
    const uint64_t cutoff = SelectCutoff<kAligned>(row, 0, count, CountWeight(), shared);
    if (threadIdx.x == 0) shared.candidate_count = 0;
    __syncthreads();
    ForTokens<kAligned>(row, [&](int32_t token, float logit) {
      const uint64_t key = OrderKey(logit, token);
      if (key >= cutoff) shared.candidates[atomicAdd(&shared.candidate_count, 1)] = key;
    });
    __syncthreads();
    SortCandidates(shared);
  }
  if (static_cast<int32_t>(threadIdx.x) >= count) return;
  const uint64_t key = shared.candidates[threadIdx.x];
  out[threadIdx.x] = {TokenOf(key), (LogitOf(key) - row.max) - shared.logarithm};
}

__device__ float Edit(float logit, const LogitEdit& edit) {
  const float biased = Finite(logit) + edit.bias;
  const float repeated =
      biased > 0.0f ? __fdiv_rn(biased, edit.repetition) : biased * edit.repetition;
  return repeated - edit.penalty;
}

// The slices' largest logits, of the row as it is now.
template <bool kAligned>
__device__ void FindSliceMaxima(const Row& row, int32_t slice_count, Shared& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
  for (int32_t slice = static_cast<int32_t>(threadIdx.x) / kWarpSize; slice < slice_count;
       slice += static_cast<int32_t>(blockDim.x) / kWarpSize) {
    const int32_t first = slice * kSliceTokens + lane * kQuad;
    float values[kStrips][kQuad];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      LoadQuad<kAligned>(row.logits, first + strip * kStripTokens, row.vocab, values[strip]);
    }
    const float max = Finite(WarpMax(LargestOf(values)));
    if (lane == 0) shared.slice_maxima[slice] = max;
  }
  __syncthreads();
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
__device__ int32_t ChooseToken(const SampleCall& call, const DeviceSampleRow& params, Row row,
                               const SliceSum* slices, int32_t slice_count, Shared& shared) {
  const bool is_edited = params.edit_count > 0;
  if (is_edited) {
    MakeEdits(call, params, row);
    FindSliceMaxima<kAligned>(row, slice_count, shared);
    const auto max_of = [&shared](int32_t slice) { return shared.slice_maxima[slice]; };
    if (threadIdx.x < kWarpSize) FindMax<kAligned>(row, slice_count, max_of, shared);
    __syncthreads();
    row.max = shared.max;
  } else if (params.temperature > 0.0f) {
    LoadSliceMaxima(slices, slice_count, shared);
  }
  int32_t token_id = shared.max_token;
  if (row.max == NegativeInfinity()) {
    token_id = 0;
  } else if (params.temperature > 0.0f) {
    token_id = ChooseWithNoise<kAligned>(row, params, slice_count, token_id, shared);
  }
  if (is_edited) UndoEdits(call, params, row);
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
  const SliceSum* const slices = call.slices + int64_t{blockIdx.x} * slice_count;
  CombineSlices<kAligned>(row, slices, slice_count, shared);
  row.max = shared.max;
  TokenLogprob result = {max(params.given_token, 0), NegativeInfinity()};
  if (row.max != NegativeInfinity()) {
    if (params.given_token < 0) {
      result.token_id = ChooseToken<kAligned>(call, params, row, slices, slice_count, shared);
    }
    result.logprob = (Finite(row.logits[result.token_id]) - row.max) - shared.logarithm;
    if (top_count > 0) WriteTop<kAligned>(row, slices, slice_count, top_count, top, shared);
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
