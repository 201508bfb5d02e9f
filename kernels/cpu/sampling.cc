#include "kernels/cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "kernels/cpu/exp_log.h"
#include "kernels/cpu/top_logprobs.h"

namespace selfsame::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Gathers the tokens above a threshold that goes down from the maximum in doubling steps of `step`,
// until is_enough(candidates) or all tokens are in. Few usually are, so that ordering them is
// cheap.
template <typename IsEnough>
void GatherUntil(const float* logits, int32_t vocab, float max, float temperature, float step,
                 std::vector<Candidate>& candidates, const IsEnough& is_enough) {
  constexpr int kMaxDoublings = 8;
  for (int doubling = 0; doubling <= kMaxDoublings; ++doubling) {
    const float depth = std::ldexp(step, doubling);
    const float threshold = doubling < kMaxDoublings ? max - depth : -kInfinity;
    candidates.clear();
    GatherCandidates(logits, vocab, threshold, max, temperature, candidates);
    if (is_enough(candidates)) return;
  }
}

uint64_t TotalMass(const std::vector<Candidate>& candidates) {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates) total += candidate.mass;
  return total;
}

// Leaves the first top_k tokens in order of (logit, id), in any order.
void KeepTopK(const float* logits, int32_t vocab, float max, const SampleRow& row,
              std::vector<Candidate>& candidates) {
  const auto count = static_cast<size_t>(row.top_k);
  GatherUntil(logits, vocab, max, row.temperature, 1.0f, candidates,
              [count](const auto& gathered) { return gathered.size() >= count; });
  std::nth_element(candidates.begin(), candidates.begin() + (row.top_k - 1), candidates.end(),
                   IsBefore);
  candidates.resize(count);
}

// The mass that the kept tokens must reach.
uint64_t TargetMass(float top_p, uint64_t total) {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(top_p) * static_cast<double>(total)));
}

// Leaves the first tokens in order of (logit, id) whose mass reaches `target`, at least one.
void KeepMass(uint64_t target, std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(), IsBefore);
  uint64_t mass = 0;
  size_t count = 0;
  while (count < candidates.size() && (count == 0 || mass < target)) {
    mass += candidates[count++].mass;
  }
  candidates.resize(count);
}

// What min-p asks of logit - max.
float LowestDifference(const SampleRow& row) {
  return row.min_p > 0.0f ? row.temperature * Log(row.min_p) : -kInfinity;
}

Cutoff FindCutoff(const float* logits, int32_t vocab, float max, const SampleRow& row,
                  std::vector<Candidate>& candidates) {
  const float lowest = LowestDifference(row);
  const bool has_top_k = row.top_k > 0 && row.top_k < vocab;
  const bool has_top_p = row.top_p < 1.0f;
  if (!has_top_k && !has_top_p) {
    return {.logit = -kInfinity, .end_id = INT32_MAX, .lowest_difference = lowest};
  }
  if (has_top_k) {
    KeepTopK(logits, vocab, max, row, candidates);
    std::erase_if(candidates,
                  [&](const Candidate& candidate) { return candidate.logit - max < lowest; });
    if (has_top_p) KeepMass(TargetMass(row.top_p, TotalMass(candidates)), candidates);
  } else {
    // Where tokens that min-p drops are gathered, all that it keeps are too, and reach the target
    // before them.
    const uint64_t target =
        TargetMass(row.top_p, SumMass(logits, vocab, max, row.temperature, lowest));
    GatherUntil(logits, vocab, max, row.temperature, 2.0f * row.temperature, candidates,
                [target](const auto& gathered) { return TotalMass(gathered) >= target; });
    KeepMass(target, candidates);
  }
  const Candidate& last = *std::max_element(candidates.begin(), candidates.end(), IsBefore);
  return {.logit = last.logit, .end_id = last.token_id + 1, .lowest_difference = lowest};
}

int32_t ChooseToken(const float* logits, int32_t vocab, const SampleRow& row, const LogitMax& max,
                    std::vector<Candidate>& candidates) {
  if (row.temperature <= 0.0f) return max.token_id;
  const Cutoff cutoff = FindCutoff(logits, vocab, max.logit, row, candidates);
  const NoiseKey key = {row.seed, static_cast<uint32_t>(row.position),
                        static_cast<uint32_t>(row.choice_index)};
  return FindNoisyMax(logits, vocab, max, row.temperature, key, cutoff);
}

float Finite(float logit) {
  return std::isnan(logit) ? -kInfinity : std::min(logit, std::numeric_limits<float>::max());
}

float Edit(float logit, const LogitEdit& edit) {
  const float biased = Finite(logit) + edit.bias;
  const float repeated = biased > 0.0f ? biased / edit.repetition : biased * edit.repetition;
  return repeated - edit.penalty;
}

int32_t ChooseFromEdited(const float* logits, int32_t vocab, const SampleRow& row,
                         SampleScratch& scratch) {
  scratch.edited.assign(logits, logits + vocab);
  for (const LogitEdit& edit : row.edits) {
    SELFSAME_CHECK(edit.token_id >= 0 && edit.token_id < vocab);
    float& logit = scratch.edited[static_cast<size_t>(edit.token_id)];
    logit = Edit(logit, edit);
  }
  const LogitMax max = FindMax(scratch.edited.data(), vocab);
  if (max.logit == -kInfinity) return 0;
  return ChooseToken(scratch.edited.data(), vocab, row, max, scratch.candidates);
}

}  // namespace

SampledToken SampleToken(const float* logits, int32_t vocab, const SampleRow& row,
                         SampleScratch& scratch) {
  const LogitMax max = FindMax(logits, vocab);
  SampledToken sampled{.token_id = std::max(row.given_token, 0), .logprob = -kInfinity, .top = {}};
  if (max.logit == -kInfinity) {
    for (int32_t id = 0; id < std::min(row.top_count, vocab); ++id) {
      sampled.top.push_back({id, -kInfinity});
    }
    return sampled;
  }
  const float log_sum = Log(SumExp(logits, vocab, max.logit));
  if (row.given_token < 0) {
    sampled.token_id = row.edits.empty() ? ChooseToken(logits, vocab, row, max, scratch.candidates)
                                         : ChooseFromEdited(logits, vocab, row, scratch);
  }
  sampled.logprob = LogprobOf(logits[sampled.token_id], max.logit, log_sum);
  if (row.top_count > 0) {
    sampled.top = FindTop(logits, vocab, max.logit, log_sum, row.top_count, scratch.candidates);
  }
  return sampled;
}

}  // namespace selfsame::cpu
