#include "verifier/engine/verdict.h"

#include <algorithm>

#include "common/check.h"

namespace selfsame::verifier {

End EndRules::EndAt(int32_t token_id, int32_t length) const {
  if (std::find(stop_token_ids.begin(), stop_token_ids.end(), token_id) != stop_token_ids.end()) {
    return End::kStopToken;
  }
  if (length - prompt_length >= max_tokens) return End::kMaxTokens;
  if (length >= context_limit) return End::kContextLimit;
  return End::kNone;
}

int32_t EndRules::longest_length() const {
  return static_cast<int32_t>(
      std::min<int64_t>(context_limit, int64_t{prompt_length} + max_tokens));
}

WindowDecision DecideWindow(const EndRules& rules, int32_t committed_length,
                            std::span<const int32_t> candidates,
                            std::span<const SampledToken> canonical) {
  WindowDecision decision;
  for (size_t i = 0; i < candidates.size(); ++i) {
    SELFSAME_CHECK(i < canonical.size());
    const SampledToken& answer = canonical[i];
    decision.committed.push_back(answer.token_id);
    decision.logprobs.push_back(answer.logprob);
    decision.end = rules.EndAt(answer.token_id, committed_length + static_cast<int32_t>(i) + 1);
    if (answer.token_id != candidates[i]) {
      decision.outcome = Outcome::kRollback;
      break;
    }
    if (decision.end != End::kNone) break;
  }
  SELFSAME_CHECK(!decision.committed.empty());
  return decision;
}

}  // namespace selfsame::verifier
