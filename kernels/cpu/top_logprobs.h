#pragma once

// The most likely tokens of one row of logits.

#include <cstdint>
#include <vector>

#include "common/token_logprob.h"
#include "kernels/cpu/sampling_kernels.h"

namespace selfsame::cpu {

// (logit - max) - log_sum, where log_sum is log of SumExp. NaN counts as -infinity and +infinity as
// the largest float.
float LogprobOf(float logit, float max, float log_sum);

// The `count` tokens of logits [vocab] with the largest logits, or all where there are fewer, in
// order: larger logit first, then lower id. `max` is the row's largest logit, finite. `scratch` is
// working memory. REQUIRES: count > 0.
TopLogprobs FindTop(const float* logits, int32_t vocab, float max, float log_sum, int32_t count,
                    std::vector<Candidate>& scratch);

}  // namespace selfsame::cpu
