#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/sampling.h"

namespace selfsame::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int32_t kSliceTokens = 1024;
constexpr int32_t kMaxSlices = kMaxVocab / kSliceTokens;
constexpr float kLargest = 3.402823466e+38f;
// No noise is larger: u is at most 1 - 2^-24.
constexpr float kNoiseBound = 16.7f;
constexpr float kMassOne = 0x1p40f;

constexpr int kBins = 256;
// Copies of a histogram, so that the lanes of a warp rarely meet in one counter.
constexpr int kCopies = 16;
constexpr int kBinsPerLane = kBins / kWarpSize;

// 64-bit counters in two words each, since only 32-bit additions are fast in shared memory.
struct Histogram {
  uint32_t low[kBins][kCopies];
  uint32_t high[kBins][kCopies];
};

struct Shared {
  Histogram histogram;
  uint64_t words[kWarps];
  float slices[kMaxSlices];
  uint64_t top_keys[kMaxTopLogprobs];
  int top_size;
  int selected_bin;
  uint64_t remaining;
  float logarithm;
};

// One row's view.
struct Row {
  const float* logits;
  int32_t vocab;
  float max;
  float temperature;
};

__device__ float Finite(float logit) {
  if (isnan(logit)) return NegativeInfinity();
  return fminf(logit, kLargest) + 0.0f;  // -0 becomes 0
}

// Orders floats as unsigned integers.
__device__ uint32_t OrderedBits(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float FromOrderedBits(uint32_t bits) {
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits & 0x7fffffffu : ~bits);
}

// Larger for larger values; among equals, for lower ids.
__device__ uint64_t OrderKey(float value, int32_t token_id) {
  return uint64_t{OrderedBits(value)} << 32 | ~static_cast<uint32_t>(token_id);
}
__device__ int32_t TokenOf(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

// Every thread gets the result. All threads call.
template <typename Combine>
__device__ uint64_t BlockReduce(uint64_t value, Shared& shared, const Combine& combine) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  if (threadIdx.x % kWarpSize == 0) shared.words[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  uint64_t total = shared.words[0];
  for (int i = 1; i < kWarps; ++i) total = combine(total, shared.words[i]);
  __syncthreads();
  return total;
}

__device__ uint64_t BlockMin(uint64_t value, Shared& shared) {
  return BlockReduce(value, shared, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
}

__device__ uint64_t BlockMax(uint64_t value, Shared& shared) {
  return BlockReduce(value, shared, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

__device__ uint64_t FindMax(const float* logits, int32_t vocab, Shared& shared) {
  uint64_t best = 0;
#pragma unroll 8
  for (int32_t token = static_cast<int32_t>(threadIdx.x); token < vocab; token += kThreads) {
    const uint64_t key = OrderKey(Finite(logits[token]), token);
    best = key > best ? key : best;
  }
  return BlockMax(best, shared);
}

// log of the sum of exp(logit - max).
__device__ float LogSumExp(const Row& row, Shared& shared) {
  const int lane = threadIdx.x % kWarpSize;
  const int32_t slices = (row.vocab + kSliceTokens - 1) / kSliceTokens;
  for (int32_t slice = static_cast<int32_t>(threadIdx.x) / kWarpSize; slice < slices;
       slice += kWarps) {
    const int32_t end = min((slice + 1) * kSliceTokens, row.vocab);
    float sum = 0.0f;
#pragma unroll 8
    for (int32_t token = slice * kSliceTokens + lane; token < end; token += kWarpSize) {
      sum = sum + Exp(Finite(row.logits[token]) - row.max);
    }
    sum = WarpSum(sum);
    if (lane == 0) shared.slices[slice] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int32_t slice = 0; slice < slices; ++slice) total = total + shared.slices[slice];
    shared.logarithm = Log(total);
  }
  __syncthreads();
  return shared.logarithm;
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

__device__ uint64_t SumMass(const Row& row, uint64_t cutoff, Shared& shared) {
  uint64_t sum = 0;
  for (int32_t token = static_cast<int32_t>(threadIdx.x); token < row.vocab; token += kThreads) {
    const float logit = Finite(row.logits[token]);
    if (OrderKey(logit, token) >= cutoff) sum += MassOf(row, logit);
  }
  return BlockReduce(sum, shared, [](uint64_t a, uint64_t b) { return a + b; });
}

__device__ void AddToBin(Histogram& histogram, int bin, uint64_t weight) {
  const int copy = threadIdx.x % kCopies;
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t old = atomicAdd(&histogram.low[bin][copy], low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old ? 1u : 0u);
  if (high != 0) atomicAdd(&histogram.high[bin][copy], high);
}

// Weights of the tokens whose key agrees with `prefix` above `shift + 8` bits and passes `cutoff`,
// by the next 8 bits.
template <typename Weight>
__device__ void FillHistogram(const Row& row, uint64_t cutoff, uint64_t prefix, int shift,
                              const Weight& weight, Histogram& histogram) {
  for (int i = static_cast<int>(threadIdx.x); i < kBins * kCopies; i += kThreads) {
    histogram.low[i / kCopies][i % kCopies] = 0;
    histogram.high[i / kCopies][i % kCopies] = 0;
  }
  __syncthreads();
  const uint64_t mask = shift == 56 ? 0 : ~uint64_t{0} << (shift + 8);
  for (int32_t token = static_cast<int32_t>(threadIdx.x); token < row.vocab; token += kThreads) {
    const float logit = Finite(row.logits[token]);
    const uint64_t key = OrderKey(logit, token);
    if ((key & mask) != prefix || key < cutoff) continue;
    AddToBin(histogram, static_cast<int>(key >> shift & 0xff), weight(row, logit));
  }
  __syncthreads();
}

// From the highest bin down, the one in which the weights reach `remaining`; subtracts the weights
// of those above it. Lane l has bins 255 - 8 l down to 248 - 8 l.
__device__ void SelectBin(Shared& shared, uint64_t remaining) {
  if (threadIdx.x < kWarpSize) {
    const int lane = static_cast<int>(threadIdx.x);
    uint64_t weights[kBinsPerLane];
    uint64_t sum = 0;
    for (int i = 0; i < kBinsPerLane; ++i) {
      const int bin = kBins - 1 - (lane * kBinsPerLane + i);
      weights[i] = 0;
      for (int copy = 0; copy < kCopies; ++copy) {
        weights[i] +=
            (uint64_t{shared.histogram.high[bin][copy]} << 32) + shared.histogram.low[bin][copy];
      }
      sum += weights[i];
    }
    uint64_t reached = sum;
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const uint64_t before = __shfl_up_sync(kAllLanes, reached, offset);
      if (lane >= offset) reached += before;
    }
    uint64_t above = reached - sum;
    if (above < remaining && remaining <= reached) {
      int i = 0;
      while (above + weights[i] < remaining) above += weights[i++];
      shared.selected_bin = kBins - 1 - (lane * kBinsPerLane + i);
      shared.remaining = remaining - above;
    }
  }
  __syncthreads();
}

// The key of the token at which the weights of tokens that pass `cutoff`, in decreasing order of
// key, reach `target`. REQUIRES: 1 <= target <= the sum of their weights.
template <typename Weight>
__device__ uint64_t SelectCutoff(const Row& row, uint64_t cutoff, uint64_t target,
                                 const Weight& weight, Shared& shared) {
  // The top byte of ~id is the same for all ids.
  constexpr int kShifts[] = {56, 48, 40, 32, 16, 8, 0};
  uint64_t prefix = 0;
  for (const int shift : kShifts) {
    if (shift == 16) prefix |= uint64_t{0xff} << 24;
    FillHistogram(row, cutoff, prefix, shift, weight, shared.histogram);
    SelectBin(shared, target);
    prefix |= static_cast<uint64_t>(shared.selected_bin) << shift;
    target = shared.remaining;
    __syncthreads();
  }
  return prefix;
}

__device__ float Noise(uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
  return -Log(-Log(u));
}

// The smallest key of the tokens that min-p keeps. All with a larger key are kept too, for a
// rounded difference never falls where the logit rises.
__device__ uint64_t MinPCutoff(const Row& row, float min_p, Shared& shared) {
  const float lowest = row.temperature * Log(min_p);
  uint64_t cutoff = ~uint64_t{0};
  for (int32_t token = static_cast<int32_t>(threadIdx.x); token < row.vocab; token += kThreads) {
    const float logit = Finite(row.logits[token]);
    if (logit - row.max < lowest) continue;
    const uint64_t key = OrderKey(logit, token);
    cutoff = key < cutoff ? key : cutoff;
  }
  return BlockMin(cutoff, shared);
}

// The token with the largest (logit - max) / temperature + noise among those that pass `cutoff`.
__device__ int32_t FindNoisyMax(const Row& row, const DeviceSampleRow& params, uint64_t cutoff,
                                int32_t max_token, Shared& shared) {
  const NoiseKey noise_key = {
      static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32),
      static_cast<uint32_t>(params.position), static_cast<uint32_t>(params.choice_index)};
  const auto first = static_cast<uint32_t>(max_token);
  float best = Noise(PhiloxWord(Philox(first / 4, noise_key), first % 4));
  uint64_t best_key = OrderKey(best + 0.0f, max_token);
  for (int32_t token = static_cast<int32_t>(threadIdx.x) * 4; token < row.vocab;
       token += kThreads * 4) {
    float scaled[4];
    float largest = NegativeInfinity();
    for (int i = 0; i < 4; ++i) {
      scaled[i] = NegativeInfinity();
      if (token + i >= row.vocab) continue;
      const float logit = Finite(row.logits[token + i]);
      if (OrderKey(logit, token + i) < cutoff) continue;
      scaled[i] = __fdiv_rn(logit - row.max, row.temperature);
      largest = fmaxf(largest, scaled[i]);
    }
    // No noise could lift these to the best so far.
    if (largest + kNoiseBound < best) continue;
    const uint4 words = Philox(static_cast<uint32_t>(token) / 4, noise_key);
    for (int i = 0; i < 4; ++i) {
      const float noisy = scaled[i] + Noise(PhiloxWord(words, i)) + 0.0f;
      const uint64_t key = OrderKey(noisy, token + i);
      if (key <= best_key) continue;
      best_key = key;
      best = noisy;
    }
  }
  return TokenOf(BlockMax(best_key, shared));
}

__device__ int32_t ChooseToken(const Row& row, const DeviceSampleRow& params, int32_t max_token,
                               Shared& shared) {
  if (params.temperature <= 0.0f) return max_token;
  uint64_t cutoff = 0;
  if (params.top_k > 0 && params.top_k < row.vocab) {
    cutoff = SelectCutoff(row, cutoff, params.top_k, CountWeight(), shared);
  }
  if (params.min_p > 0.0f) {
    const uint64_t min_p_cutoff = MinPCutoff(row, params.min_p, shared);
    cutoff = min_p_cutoff > cutoff ? min_p_cutoff : cutoff;
  }
  if (params.top_p < 1.0f) {
    const uint64_t total = SumMass(row, cutoff, shared);
    const double share = ceil(static_cast<double>(params.top_p) * static_cast<double>(total));
    const auto target = share < 1.0 ? uint64_t{1} : static_cast<uint64_t>(share);
    cutoff = SelectCutoff(row, cutoff, target < total ? target : total, MassWeight(), shared);
  }
  return FindNoisyMax(row, params, cutoff, max_token, shared);
}

// The row's first `count` tokens in decreasing order of key. `logarithm` is the row's LogSumExp.
__device__ void WriteTop(const Row& row, float logarithm, int32_t count, TokenLogprob* out,
                         Shared& shared) {
  const uint64_t cutoff = SelectCutoff(row, 0, count, CountWeight(), shared);
  if (threadIdx.x == 0) shared.top_size = 0;
  __syncthreads();
  for (int32_t token = static_cast<int32_t>(threadIdx.x); token < row.vocab; token += kThreads) {
    const uint64_t key = OrderKey(Finite(row.logits[token]), token);
    if (key >= cutoff) shared.top_keys[atomicAdd(&shared.top_size, 1)] = key;
  }
  __syncthreads();
  if (static_cast<int32_t>(threadIdx.x) >= count) return;
  const uint64_t key = shared.top_keys[threadIdx.x];
  int32_t place = 0;
  for (int32_t i = 0; i < count; ++i) place += shared.top_keys[i] > key ? 1 : 0;
  const float logit = FromOrderedBits(static_cast<uint32_t>(key >> 32));
  out[place] = {TokenOf(key), (logit - row.max) - logarithm};
}

__device__ float Edit(float logit, const LogitEdit& edit) {
  const float biased = Finite(logit) + edit.bias;
  const float repeated =
      biased > 0.0f ? __fdiv_rn(biased, edit.repetition) : biased * edit.repetition;
  return repeated - edit.penalty;
}

// Chooses from the edited logits, which have their old values again afterwards.
__device__ int32_t ChooseFromEdited(const SampleCall& call, const DeviceSampleRow& params, Row row,
                                    Shared& shared) {
  // Device memory that the caller owns; only this block touches the row.
  auto* const logits = const_cast<float*>(row.logits);
  const LogitEdit* const edits = call.edits + params.first_edit;
  float* const raw_logits = call.raw_logits + params.first_edit;
  for (int i = static_cast<int>(threadIdx.x); i < params.edit_count; i += kThreads) {
    const LogitEdit edit = edits[i];
    raw_logits[i] = logits[edit.token_id];
    logits[edit.token_id] = Edit(raw_logits[i], edit);
  }
  __syncthreads();
  const uint64_t max_key = FindMax(logits, row.vocab, shared);
  row.max = FromOrderedBits(static_cast<uint32_t>(max_key >> 32));
  const int32_t token_id =
      row.max == NegativeInfinity() ? 0 : ChooseToken(row, params, TokenOf(max_key), shared);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < params.edit_count; i += kThreads) {
    logits[edits[i].token_id] = raw_logits[i];
  }
  __syncthreads();
  return token_id;
}

__global__ void __launch_bounds__(kThreads) SampleKernel(SampleCall call) {
  __shared__ Shared shared;
  const DeviceSampleRow params = call.params[blockIdx.x];
  const int32_t top_count = min(params.top_count, call.vocab);
  TokenLogprob* const top = call.top + int64_t{blockIdx.x} * kMaxTopLogprobs;
  Row row = {call.logits + int64_t{blockIdx.x} * call.vocab, call.vocab, 0.0f, params.temperature};
  const uint64_t max_key = FindMax(row.logits, row.vocab, shared);
  row.max = FromOrderedBits(static_cast<uint32_t>(max_key >> 32));
  TokenLogprob result = {max(params.given_token, 0), NegativeInfinity()};
  if (row.max != NegativeInfinity()) {
    const float logarithm = LogSumExp(row, shared);
    if (params.given_token < 0) {
      result.token_id = params.edit_count > 0 ? ChooseFromEdited(call, params, row, shared)
                                              : ChooseToken(row, params, TokenOf(max_key), shared);
    }
    result.logprob = (Finite(row.logits[result.token_id]) - row.max) - logarithm;
    if (top_count > 0) WriteTop(row, logarithm, top_count, top, shared);
  } else if (static_cast<int32_t>(threadIdx.x) < top_count) {
    top[threadIdx.x] = {static_cast<int32_t>(threadIdx.x), NegativeInfinity()};
  }
  if (threadIdx.x == 0) call.out[blockIdx.x] = result;
}

}  // namespace

cudaError_t RunSample(const SampleCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  if (call.vocab > kMaxVocab) return cudaErrorInvalidValue;
  SampleKernel<<<call.rows, kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace selfsame::cuda
