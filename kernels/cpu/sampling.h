#pragma once

// Ops::Sample of the CPU backend: one row at a time, from that row's logits and parameters alone.

#include <vector>

#include "kernels/cpu/sampling_kernels.h"
#include "kernels/ops.h"

namespace selfsame::cpu {

// Working memory that the caller keeps to spare allocations.
struct SampleScratch {
  std::vector<Candidate> candidates;
  std::vector<float> edited;  // [vocab]
};

// Chooses a token from logits [vocab], changed by the row's edits.
//   temperature 0: the largest logit, ties to the lowest id.
//   else: min-p keeps the tokens with logit - max >= temperature * log(min_p); of those, top-k
//   keeps the k largest logits (ties to the lowest id); of those, top-p keeps the smallest set of
//   most probable tokens whose mass at this temperature reaches top_p, at least one; then the
//   largest (logit - max) / temperature + Gumbel noise. a given token is taken as it is.
// logprob: (logit - max) - log(sum of exp(logit - max)) of the logits without edits, of the token
// and of the row's most likely ones. A row without a finite logit gives token 0 and -infinity; one
// whose edits leave no finite logit gives token 0.
SampledToken SampleToken(const float* logits, int32_t vocab, const SampleRow& row,
                         SampleScratch& scratch);

}  // namespace selfsame::cpu
