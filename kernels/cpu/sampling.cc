#include "kernels/cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/exp_log.h"

namespace selfsame::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool IsBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
}

// Lowers a threshold from the maximum, in doubling steps of `step`, until is_enough(threshold). Few
// tokens usually lie above it, so that sorting them is cheap.
template <typename IsEnough>
float FindThreshold(float max, float step, const IsEnough& is_enough) {
  for (float depth = step; depth < 1e4f * step; depth *= 2.0f) {
    const float threshold = max - depth;
    if (is_enough(threshold)) return threshold;
  }
  return -kInfinity;
}

// The cutoff that keeps the top_k first tokens in order of (logit, id).
Cutoff TopKCutoff(const float* logits, int32_t vocab, float max, int32_t top_k,
                  std::vector<Candidate>& candidates) {
  const float threshold = FindThreshold(
      max, 1.0f, [&](float value) { return CountAtLeast(logits, vocab, value) >= top_k; });
  candidates.clear();
  GatherCandidates(logits, vocab, threshold, kNoCutoff, candidates);
  const auto last = candidates.begin() + (top_k - 1);
  std::nth_element(candidates.begin(), last, candidates.end(), IsBefore);
  return {last->logit, last->token_id + 1};
}

// The cutoff that keeps, of what passes `cutoff`, the first tokens whose mass reaches top_p.
Cutoff TopPCutoff(const float* logits, int32_t vocab, float max, const SampleRow& row,
                  const Cutoff& cutoff, std::vector<Candidate>& candidates) {
  const uint64_t total = SumMass(logits, vocab, max, row.temperature, cutoff);
  const auto target =
      static_cast<uint64_t>(std::ceil(static_cast<double>(row.top_p) * static_cast<double>(total)));
  // Between the cutoff and an equal threshold only the ids differ; the sum then counts tokens the
  // candidates lack, which the loop below tolerates by running to the end.
  const float threshold = FindThreshold(max, 2.0f * row.temperature, [&](float value) {
    if (value <= cutoff.logit) return true;
    return SumMass(logits, vocab, max, row.temperature,
                   {value, std::numeric_limits<int32_t>::max()}) >= target;
  });
  candidates.clear();
  GatherCandidates(logits, vocab, threshold, cutoff, candidates);
  std::sort(candidates.begin(), candidates.end(), IsBefore);
  uint64_t mass = 0;
  for (const Candidate& candidate : candidates) {
    mass += FixedPointMass(candidate.logit, max, row.temperature);
    if (mass >= target) return {candidate.logit, candidate.token_id + 1};
  }
  return cutoff;
}

int32_t ChooseToken(const float* logits, int32_t vocab, const SampleRow& row, const LogitMax& max,
                    std::vector<Candidate>& scratch) {
  if (row.temperature <= 0.0f) return max.token_id;
  Cutoff cutoff = kNoCutoff;
  if (row.top_k > 0 && row.top_k < vocab) {
    cutoff = TopKCutoff(logits, vocab, max.logit, row.top_k, scratch);
  }
  if (row.top_p < 1.0f) {
    cutoff = TopPCutoff(logits, vocab, max.logit, row, cutoff, scratch);
  }
  const NoiseKey key = {row.seed, static_cast<uint32_t>(row.position),
                        static_cast<uint32_t>(row.choice_index)};
  return FindNoisyMax(logits, vocab, max, row.temperature, key, cutoff);
}

}  // namespace

SampledToken SampleToken(const float* logits, int32_t vocab, const SampleRow& row,
                         std::vector<Candidate>& scratch) {
  const LogitMax max = FindMax(logits, vocab);
  if (max.logit == -kInfinity) return {0, -kInfinity};
  const float sum = SumExp(logits, vocab, max.logit);
  SampledToken sampled;
  sampled.token_id = ChooseToken(logits, vocab, row, max, scratch);
  const float logit = std::min(logits[sampled.token_id], std::numeric_limits<float>::max());
  sampled.logprob = (logit - max.logit) - Log(sum);
  return sampled;
}

}  // namespace selfsame::cpu
