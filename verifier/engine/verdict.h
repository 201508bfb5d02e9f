#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "verifier/engine/types.h"

namespace selfsame::verifier {

// When a session's answer is complete.
struct EndRules {
  int32_t prompt_length = 0;
  int32_t max_tokens = 0;
  int32_t context_limit = 0;
  std::vector<int32_t> stop_token_ids;

  // The end that a committed `token_id` is, when it makes the committed length `length`. A stop
  // token comes before max_tokens, and that before the context limit.
  End EndAt(int32_t token_id, int32_t length) const;

  // Committed tokens, prompt included, beyond which nothing is ever committed.
  int32_t longest_length() const;
};

// What is committed of a window.
struct WindowDecision {
  Outcome outcome = Outcome::kCommit;  // or kRollback
  End end = End::kNone;
  std::vector<int32_t> committed;  // newly committed tokens; never empty
  std::vector<float> logprobs;     // theirs
};

// Decides a window. `committed_length` is the session's before the window, `candidates` the
// window's, and canonical[i] what the canonical arithmetic gives in the place of candidates[i]
// given the candidates before it.
//
// Candidates before the first mismatch stand and the canonical token takes the mismatch's place
// (kRollback); with no mismatch the candidates stand and nothing more (kCommit). Nothing past the
// first end is committed, so `canonical` may stop where longest_length() is reached.
// REQUIRES: candidates and canonical are not empty; canonical has an entry for every candidate
// within longest_length().
WindowDecision DecideWindow(const EndRules& rules, int32_t committed_length,
                            std::span<const int32_t> candidates,
                            std::span<const SampledToken> canonical);

// How windows are decided. The product has DecideWindow; test binaries may inject another.
using WindowPolicy = std::function<WindowDecision(const EndRules& rules, int32_t committed_length,
                                                  std::span<const int32_t> candidates,
                                                  std::span<const SampledToken> canonical)>;

}  // namespace selfsame::verifier
