// The verifier with rollback disabled: every candidate stands, whatever the canonical arithmetic
// says. Built for the tests alone, which must fail with it: that shows they have power.

#include <vector>

#include "verifier/run.h"

namespace {

selfsame::verifier::WindowDecision CommitAll(const selfsame::verifier::EndRules& rules,
                                             int32_t committed_length,
                                             std::span<const int32_t> candidates,
                                             std::span<const selfsame::SampledToken> canonical) {
  std::vector<selfsame::SampledToken> agreeing(canonical.begin(), canonical.end());
  for (size_t i = 0; i < agreeing.size(); ++i) agreeing[i].token_id = candidates[i];
  return selfsame::verifier::DecideWindow(rules, committed_length, candidates, agreeing);
}

}  // namespace

int main(int argc, char** argv) { return selfsame::verifier::RunVerifier(argc, argv, CommitAll); }
