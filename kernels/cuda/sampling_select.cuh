#pragma once

// Finds the token of a row at which a weight is reached, by counting digits of the ordered bits of
// its logits: exact, without sorting. For any row; sampling_candidates.cuh is faster where the
// tokens in question are few.

#include <cstdint>

#include "kernels/cuda/sampling_row.cuh"

namespace selfsame::cuda {

__device__ inline void AddToBin(Histogram& histogram, int bin, uint64_t weight) {
  const int copy = threadIdx.x % kCopies;
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t old = atomicAdd(&histogram.low[bin][copy], low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old ? 1u : 0u);
  if (high != 0) atomicAdd(&histogram.high[bin][copy], high);
}

// Weights of the tokens whose key agrees with `prefix` above `shift + 8` bits and passes `cutoff`,
// by the next 8 bits.
template <bool kAligned, typename Weight>
__device__ void FillHistogram(const Row& row, uint64_t cutoff, uint64_t prefix, int shift,
                              const Weight& weight, Histogram& histogram) {
  for (auto i = static_cast<int>(threadIdx.x); i < kBins * kCopies;
       i += static_cast<int>(blockDim.x)) {
    histogram.low[i / kCopies][i % kCopies] = 0;
    histogram.high[i / kCopies][i % kCopies] = 0;
  }
  __syncthreads();
  const uint64_t mask = shift == 56 ? 0 : ~uint64_t{0} << (shift + 8);
  ForTokens<kAligned>(row, [&](int32_t token, float logit) {
    const uint64_t key = OrderKey(logit, token);
    if ((key & mask) != prefix || key < cutoff) return;
    AddToBin(histogram, static_cast<int>(key >> shift & 0xff), weight(row, logit));
  });
  __syncthreads();
}

// From the highest bin down, the one in which the weights reach `remaining`; subtracts the weights
// of those above it. Lane l has bins 255 - 8 l down to 248 - 8 l.
__device__ inline void SelectBin(Shared& shared, uint64_t remaining) {
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
      shared.selected_weight = weights[i];
      shared.remaining = remaining - above;
    }
  }
  __syncthreads();
}

// Of the tokens that pass `cutoff`, in decreasing order of key, the first ones until their weights
// reach `target`: those are the tokens that pass the result. A token passes a key that is not
// larger than its own. REQUIRES: 1 <= target <= the sum of the weights.
template <bool kAligned, typename Weight>
__device__ uint64_t SelectCutoff(const Row& row, uint64_t cutoff, uint64_t target,
                                 const Weight& weight, Shared& shared) {
  // The top byte of ~id is the same for all ids.
  constexpr int kShifts[] = {56, 48, 40, 32, 16, 8, 0};
  uint64_t prefix = 0;
#pragma unroll 1
  for (const int shift : kShifts) {
    if (shift == 16) prefix |= uint64_t{0xff} << 24;
    FillHistogram<kAligned>(row, cutoff, prefix, shift, weight, shared.histogram);
    SelectBin(shared, target);
    prefix |= static_cast<uint64_t>(shared.selected_bin) << shift;
    target = shared.remaining;
    const uint64_t reached = shared.selected_weight;
    __syncthreads();
    if (shift != 32) continue;
    // What is left are tokens of one logit; nearly always all of them are needed.
    const uint64_t each = weight(row, FromOrderedBits(static_cast<uint32_t>(prefix >> 32)));
    if (target + each > reached) break;
  }
  return prefix > cutoff ? prefix : cutoff;
}

}  // namespace selfsame::cuda
