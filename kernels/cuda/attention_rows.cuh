#pragma once

// The softmax of a warp with 16 queries of its own, over all keys of a tile: the same source for
// the kernels that multiply by warps and by warpgroups.

#include "kernels/cuda/attention_common.cuh"

namespace selfsame::cuda {

inline constexpr int kKeyTiles =
    kAttentionTileKeys / kMmaColumns;  // accumulators of a tile's scores
inline constexpr int kTilesPerSum = kSumKeys / kMmaColumns;

using RowScores = float[kKeyTiles][4];

// Softmax state and output of the 16 queries of a warp. A thread holds queries lane / 4 and 8 more;
// of each, columns 8 t + 2 (lane % 4) and the next, for every t.
template <int kHeadDim>
struct RowState {
  static constexpr int kOutputTiles = kHeadDim / kMmaColumns;
  float max[2];
  // One for each 16 keys of a tile, until FinishRows leaves the whole in the first.
  float sum[2][kAttentionWarps];
  float output[kOutputTiles][4];

  __device__ void Reset() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[half] = NegativeInfinity();
      for (float& value : sum[half]) value = 0.0f;
    }
#pragma unroll
    for (auto& tile : output) {
      for (float& value : tile) value = 0.0f;
    }
  }
};

// Takes away the keys after a query's position. `first_key` is the thread's first.
__device__ inline void MaskRows(int32_t first_key, const int32_t (&positions)[2],
                                RowScores& scores) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t visible = positions[half] - first_key;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (t * kMmaColumns + i > visible) scores[t][2 * half + i] = NegativeInfinity();
      }
    }
  }
}

// Turns scores into probabilities and brings max and sums up to the new maximum; `alpha` is what
// the output must be multiplied by.
template <int kHeadDim>
__device__ void RowSoftmax(float scale, RowScores& scores, RowState<kHeadDim>& state,
                           float (&alpha)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float new_max = state.max[half];
    // Pairs first, so that few steps wait for each other; a maximum has no rounding.
#pragma unroll
    for (int t = 0; t < kKeyTiles; t += 2) {
      const float left = fmaxf(scores[t][2 * half], scores[t][2 * half + 1]);
      const float right = fmaxf(scores[t + 1][2 * half], scores[t + 1][2 * half + 1]);
      new_max = fmaxf(new_max, fmaxf(left, right));
    }
    new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 1));
    new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 2));
    const float reference = Reference(new_max, scale);
    alpha[half] = Rescale(state.max[half], scale, reference);
    state.max[half] = new_max;
#pragma unroll
    for (int part = 0; part < kAttentionWarps; ++part) {
      float sum;  // from the first on: 0 + p = p, as no p is -0
#pragma unroll
      for (int t = part * kTilesPerSum; t < (part + 1) * kTilesPerSum; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[t][2 * half + i];
          score = Probability(score, scale, reference);
          sum = t == part * kTilesPerSum && i == 0 ? score : sum + score;
        }
      }
      state.sum[half][part] = __fmaf_rn(state.sum[half][part], alpha[half], sum);
    }
  }
}

template <int kHeadDim>
__device__ void ScaleOutput(const float (&alpha)[2], RowState<kHeadDim>& state) {
#pragma unroll
  for (auto& tile : state.output) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      tile[2 * half] = tile[2 * half] * alpha[half];
      tile[2 * half + 1] = tile[2 * half + 1] * alpha[half];
    }
  }
}

// Adds the partial sums of each query: of the four lanes, then of the four parts in order.
template <int kHeadDim>
__device__ void FinishRows(RowState<kHeadDim>& state) {
#pragma unroll
  for (auto& parts : state.sum) {
#pragma unroll
    for (float& sum : parts) {
      sum = sum + __shfl_xor_sync(kAllLanes, sum, 1);
      sum = sum + __shfl_xor_sync(kAllLanes, sum, 2);
    }
#pragma unroll
    for (int part = 1; part < kAttentionWarps; ++part) parts[0] = parts[0] + parts[part];
  }
}

// What is kept of the splits before.
template <int kHeadDim>
struct MergedRows {
  float max[2] = {NegativeInfinity(), NegativeInfinity()};
  float sum[2] = {};
  float output[RowState<kHeadDim>::kOutputTiles][4] = {};

  __device__ void Add(float scale, const RowState<kHeadDim>& split) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const MergeWeights weights =
          MergeSplit(scale, split.max[half], split.sum[half][0], max[half], sum[half]);
#pragma unroll
      for (int t = 0; t < RowState<kHeadDim>::kOutputTiles; ++t) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          output[t][i] = MergeOutput(split.output[t][i], output[t][i], weights);
        }
      }
    }
  }
};

}  // namespace selfsame::cuda
