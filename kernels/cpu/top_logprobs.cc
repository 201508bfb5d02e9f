#include "kernels/cpu/top_logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace selfsame::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

float LogprobOf(float logit, float max, float log_sum) {
  if (std::isnan(logit)) return -kInfinity;
  return (std::min(logit, std::numeric_limits<float>::max()) - max) - log_sum;
}

TopLogprobs FindTop(const float* logits, int32_t vocab, float max, float log_sum, int32_t count,
                    std::vector<Candidate>& scratch) {
  const auto size = static_cast<size_t>(std::min(count, vocab));
  // The threshold goes down in doubling steps until enough tokens are above it; few more usually
  // are.
  constexpr float kFirstDepth = 4.0f;
  constexpr float kLastDepth = 256.0f;
  scratch.clear();
  for (float depth = kFirstDepth; scratch.size() < size; depth *= 2.0f) {
    scratch.clear();
    const float threshold = depth < kLastDepth ? max - depth : -kInfinity;
    GatherCandidates(logits, vocab, threshold, max, /*temperature=*/1.0f, scratch);
  }
  const auto end = scratch.begin() + static_cast<ptrdiff_t>(size);
  std::partial_sort(scratch.begin(), end, scratch.end(), IsBefore);
  TopLogprobs top;
  top.reserve(size);
  for (auto it = scratch.begin(); it != end; ++it) {
    top.push_back({it->token_id, LogprobOf(it->logit, max, log_sum)});
  }
  return top;
}

}  // namespace selfsame::cpu
