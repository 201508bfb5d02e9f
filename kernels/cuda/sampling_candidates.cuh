#pragma once

// The most likely tokens of a row, where a list of at most kMaxCandidates is enough: the largest
// logits of the slices tell from where on tokens are worth listing, and which slices have such.

#include <cstdint>

#include "kernels/cuda/sampling_row.cuh"

namespace selfsame::cuda {

// The `rank`-th largest of the slices' largest logits. REQUIRES: 1 <= rank <= slice_count.
__device__ inline float SliceMaximum(int32_t slice_count, int32_t rank, Shared& shared) {
  for (auto slice = static_cast<int32_t>(threadIdx.x); slice < slice_count;
       slice += static_cast<int32_t>(blockDim.x)) {
    const uint64_t key = OrderKey(shared.slice_maxima[slice], slice);
    int32_t place = 1;
    for (int32_t other = 0; other < slice_count; ++other) {
      place += OrderKey(shared.slice_maxima[other], other) > key ? 1 : 0;
    }
    if (place == rank) shared.threshold = shared.slice_maxima[slice];
  }
  __syncthreads();
  return shared.threshold;
}

// Decreasing, by a bitonic network over a power of two.
__device__ inline void SortCandidates(Shared& shared) {
  const int count = shared.candidate_count;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  int size = 1;
  while (size < count) size *= 2;
  for (int i = count + thread; i < size; i += threads) shared.candidates[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      for (int i = thread; i < size; i += threads) {
        const int other = i ^ distance;
        if (other < i) continue;
        const uint64_t a = shared.candidates[i];
        const uint64_t b = shared.candidates[other];
        if ((a < b) != ((i & run) == 0)) continue;
        shared.candidates[i] = b;
        shared.candidates[other] = a;
      }
      __syncthreads();
    }
  }
}

// Lists the tokens whose logit is at least the `rank`-th largest of the slices' largest ones, which
// are at least `rank` tokens, in decreasing order of key. False if there are too many.
template <bool kAligned>
__device__ bool ListCandidates(const Row& row, int32_t slice_count, int32_t rank, Shared& shared) {
  if (threadIdx.x == 0) shared.candidate_count = 0;
  const float threshold = SliceMaximum(slice_count, rank, shared);
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
  for (int32_t slice = static_cast<int32_t>(threadIdx.x) / kWarpSize; slice < slice_count;
       slice += static_cast<int32_t>(blockDim.x) / kWarpSize) {
    if (shared.slice_maxima[slice] < threshold) continue;
    const int32_t first = slice * kSliceTokens + lane * kQuad;
    float values[kStrips][kQuad];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      LoadQuad<kAligned>(row.logits, first + strip * kStripTokens, row.vocab, values[strip]);
    }
    uint32_t listed = 0;  // bit kQuad * strip + i
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        listed |= (Finite(values[strip][i]) >= threshold ? 1u : 0u) << (kQuad * strip + i);
      }
    }
    for (; listed != 0; listed &= listed - 1) {
      const int bit = __ffs(static_cast<int>(listed)) - 1;
      const int32_t token = first + bit / kQuad * kStripTokens + bit % kQuad;
      if (token >= row.vocab) break;
      const int place = atomicAdd(&shared.candidate_count, 1);
      if (place >= kMaxCandidates) break;
      shared.candidates[place] = OrderKey(Finite(row.logits[token]), token);
    }
  }
  __syncthreads();
  if (shared.candidate_count > kMaxCandidates) return false;
  SortCandidates(shared);
  return true;
}

// How many of the first `count` candidates have logit - max >= lowest: the first ones.
__device__ inline int32_t CountAbove(const Row& row, float lowest, int32_t count,
                                     const Shared& shared) {
  int32_t begin = 0;
  while (begin < count) {
    const int32_t middle = (begin + count) / 2;
    if (LogitOf(shared.candidates[middle]) - row.max >= lowest) {
      begin = middle + 1;
    } else {
      count = middle;
    }
  }
  return begin;
}

// How many of the first `count` candidates it takes to reach top_p of `total`, or if that is 0, of
// their own mass. -1 if all do not reach it.
__device__ inline int32_t CountMass(const Row& row, float top_p, uint64_t total, int32_t count,
                                    Shared& shared) {
  if (threadIdx.x < kWarpSize) {
    const auto lane = static_cast<int32_t>(threadIdx.x);
    const int32_t share = (count + kWarpSize - 1) / kWarpSize;
    const int32_t end = min((lane + 1) * share, count);
    uint64_t sum = 0;
    for (int32_t i = lane * share; i < end; ++i) sum += MassOf(row, LogitOf(shared.candidates[i]));
    uint64_t reached = sum;
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const uint64_t before = __shfl_up_sync(kAllLanes, reached, offset);
      if (lane >= offset) reached += before;
    }
    const uint64_t listed = __shfl_sync(kAllLanes, reached, kWarpSize - 1);
    const uint64_t target = TargetMass(top_p, total == 0 ? listed : total);
    uint64_t above = reached - sum;
    if (above < target && target <= reached) {
      int32_t i = lane * share;
      for (; above < target; ++i) above += MassOf(row, LogitOf(shared.candidates[i]));
      shared.kept = i;
    }
    if (lane == 0 && listed < target) shared.kept = -1;
  }
  __syncthreads();
  return shared.kept;
}

}  // namespace selfsame::cuda
