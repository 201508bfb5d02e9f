#pragma once

// Chooses tokens on the device, in two kernels: a warp for each slice of 1024 tokens takes its
// largest logit and its sum of exponentials, reading it once; then a block for each row combines
// its slices and chooses. A row's result depends on its own logits and parameters alone.
//
//   edits: each in place on its own logit, and undone when the token is chosen.
//   greedy: the largest logit, ties to the lowest id.
//   else: min-p keeps the tokens with logit - max >= temperature * log(min_p); top-k keeps, of
//   those, the k largest logits (ties to the lowest id); top-p keeps, of those, the smallest set of
//   most probable tokens whose mass reaches top_p, at least one; mass is
//   floor(exp((logit - max) / temperature) * 2^40), so that sums are integers and have no order;
//   then the largest (logit - max) / temperature + noise. Noise: -log(-log(u)) with
//   u = ((word >> 9) + 1/2) * 2^-23, word token_id mod 4 of Philox4x32-10 with key = seed and
//   counter = {token_id / 4, position, choice_index, 0}.
//   logprob = (logit - max) - log(total), of the logits without edits. Slice s: m_s is its largest
//   logit; lane l of a warp has four sums, of exp(logit - m_s) of the tokens that are 4l + j mod
//   128, j = 0 .. 3, in increasing order; added (0 + 1) + (2 + 3), then a butterfly over the lanes
//   gives sum_s. Row: lane l adds sum_s * exp(m_s - max) of the slices s = l, l + 32, .. in
//   increasing order; then a butterfly gives total. A missing token counts as -infinity. exp is 0
//   from -87.7 down.
//   A given token is taken as it is. The most likely tokens of a row that asks for them are in
//   order of (logit, id), without edits.
// NaN counts as -infinity, +infinity as the largest float. A row without a finite logit gives token
// 0 and -infinity; one whose edits leave no finite logit gives token 0. How the tokens that are
// kept are found is in no result: from a short list, or by counting digits of the ordered bits.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/limits.h"
#include "common/token_logprob.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

inline constexpr int32_t kMaxVocab = 1 << 20;
inline constexpr int32_t kSliceTokens = 1024;
inline constexpr int32_t kMaxSlices = kMaxVocab / kSliceTokens;

// SampleRow as the kernel reads it; its edits are a run of a common array.
struct DeviceSampleRow {
  float temperature = 0.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;
  int32_t choice_index = 0;
  int32_t position = 0;
  int32_t given_token = -1;
  int32_t top_count = 0;
  int32_t first_edit = 0;
  int32_t edit_count = 0;
};

// Of a slice of a row.
struct SliceSum {
  float max = 0.0f;
  float sum = 0.0f;  // of exp(logit - max)
};

// All device memory. REQUIRES: vocab <= kMaxVocab; top_count <= kMaxTopLogprobs.
struct SampleCall {
  const float* logits = nullptr;  // [rows, vocab]; changed meanwhile, the same afterwards
  int32_t vocab = 0;
  const DeviceSampleRow* params = nullptr;  // [rows]
  int32_t rows = 0;
  const LogitEdit* edits = nullptr;  // of all rows
  float* raw_logits = nullptr;       // working memory, one for each edit
  SliceSum* slices = nullptr;        // working memory, [rows, ceil(vocab / kSliceTokens)]
  TokenLogprob* out = nullptr;       // [rows]
  // [rows, kMaxTopLogprobs], of which a row writes the first min(top_count, vocab).
  TokenLogprob* top = nullptr;
  bool operator==(const SampleCall&) const = default;
};
cudaError_t RunSample(const SampleCall& call, cudaStream_t stream);

}  // namespace selfsame::cuda
