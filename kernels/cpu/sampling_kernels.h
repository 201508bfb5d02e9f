#pragma once

// Scans over one row of logits. In every scan NaN counts as -infinity and +infinity as the largest
// float.

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace selfsame::cpu {

// Which tokens a row may choose: those with a logit above `logit`, and those equal to it with an id
// below `end_id`; of them, those with logit - max of at least `lowest_difference`.
struct Cutoff {
  float logit = -__builtin_inff();
  int32_t end_id = INT32_MAX;
  float lowest_difference = -__builtin_inff();
};

struct LogitMax {
  float logit = 0.0f;
  int32_t token_id = 0;  // the lowest with that logit
};

// What the noise of a token is keyed by, beside its id.
struct NoiseKey {
  uint64_t seed = 0;
  uint32_t position = 0;
  uint32_t choice_index = 0;
};

struct Candidate {
  float logit;
  int32_t token_id;
  // Weight for top-p: floor(exp((logit - max) / temperature) * 2^40). Integers, so that sums do not
  // depend on order.
  uint64_t mass;
};

// The order of tokens: larger logit first, then lower id.
inline bool IsBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
}

// Largest of a row's logits [vocab].
LogitMax FindMax(const float* logits, int32_t vocab);

// Sum of exp(logit - max): over slices of 1024 tokens, each over 16 lanes (token mod 16, ascending)
// and a tree; slices are added in increasing order.
float SumExp(const float* logits, int32_t vocab, float max);

// Sum of the masses of the tokens with logit - max of at least `lowest_difference`.
uint64_t SumMass(const float* logits, int32_t vocab, float max, float temperature,
                 float lowest_difference);

// Appends the tokens with a logit of at least `threshold`, by increasing id.
void GatherCandidates(const float* logits, int32_t vocab, float threshold, float max,
                      float temperature, std::vector<Candidate>& candidates);

// Gumbel noise of a token: -log(-log(u)), u = (word >> 9) + 1/2 in units of 2^-23, word
// token_id mod 4 of Philox with key = seed and counter = {token_id / 4, position, choice_index, 0}.
float GumbelNoise(int32_t token_id, const NoiseKey& key);

// The token that maximises (logit - max.logit) / temperature + noise among those that pass
// `cutoff`; ties go to the lowest id. REQUIRES: max.token_id passes.
int32_t FindNoisyMax(const float* logits, int32_t vocab, const LogitMax& max, float temperature,
                     const NoiseKey& key, const Cutoff& cutoff);

}  // namespace selfsame::cpu
