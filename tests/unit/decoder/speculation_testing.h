#pragma once

// One state machine with a prompt of ten tokens, and the verdicts a verifier may give it.

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "decoder/engine/speculation.h"

namespace selfsame::decoder {

inline constexpr int32_t kPrompt = 10;
inline constexpr int32_t kStop = 2;
inline constexpr int32_t kVocab = 1000;
inline constexpr uint64_t kSession = 7;

inline Speculation Make(int32_t max_tokens = 100, int32_t max_inflight_windows = 4) {
  return Speculation({.prompt_length = kPrompt,
                      .max_tokens = max_tokens,
                      .stop_token_ids = {kStop},
                      .vocab_size = kVocab,
                      .max_inflight_windows = max_inflight_windows});
}

inline std::vector<float> Logprobs(int32_t count) {
  std::vector<float> logprobs(static_cast<size_t>(count));
  for (size_t i = 0; i < logprobs.size(); ++i) logprobs[i] = -0.25f * static_cast<float>(i + 1);
  return logprobs;
}

inline Verdict Opening(const Speculation& s, int32_t token, End end = End::kNone) {
  return {.session_id = s.session_id(),
          .window_id = 0,
          .outcome = Outcome::kCommit,
          .epoch = 0,
          .committed_length = s.committed_length() + 1,
          .canonical_token = token,
          .logprobs = Logprobs(1),
          .end = end};
}

inline Verdict Commit(const Speculation& s, const Window& window, End end = End::kNone,
                      int32_t committed_of_window = -1) {
  const auto size = static_cast<int32_t>(window.candidate_ids.size());
  const int32_t count = committed_of_window < 0 ? size : committed_of_window;
  return {.session_id = s.session_id(),
          .window_id = window.window_id,
          .outcome = Outcome::kCommit,
          .epoch = window.epoch,
          .committed_length = window.first_position + count,
          .canonical_token = std::nullopt,
          .logprobs = Logprobs(count),
          .end = end};
}

// The candidate at `index` of the window is replaced by `token`.
inline Verdict Rollback(const Speculation& s, const Window& window, int32_t index, int32_t token,
                        End end = End::kNone) {
  return {.session_id = s.session_id(),
          .window_id = window.window_id,
          .outcome = Outcome::kRollback,
          .epoch = window.epoch + 1,
          .committed_length = window.first_position + index + 1,
          .canonical_token = token,
          .logprobs = Logprobs(index + 1),
          .end = end};
}

inline Verdict Discarded(const Speculation& s, const Window& window) {
  return {.session_id = s.session_id(),
          .window_id = window.window_id,
          .outcome = Outcome::kDiscarded,
          .epoch = s.epoch(),
          .committed_length = s.committed_length(),
          .canonical_token = std::nullopt,
          .logprobs = {},
          .end = End::kNone};
}

inline SpeculationEffect Apply(Speculation& s, const Verdict& verdict) {
  auto effect = s.ApplyVerdict(verdict);
  EXPECT_TRUE(effect.ok()) << effect.status();
  return effect.value_or(SpeculationEffect());
}

inline void Append(Speculation& s, std::initializer_list<int32_t> tokens) {
  for (int32_t token : tokens) s.AppendCandidate(token);
}

inline Window Cut(Speculation& s, int32_t max_size) {
  auto window = s.CutWindow(max_size);
  EXPECT_TRUE(window.has_value());
  return window.value_or(Window());
}

// A session with one committed token, 100.
inline Speculation Opened(int32_t max_tokens = 100, int32_t max_inflight_windows = 4) {
  Speculation s = Make(max_tokens, max_inflight_windows);
  s.NewSession(kSession);
  Apply(s, Opening(s, 100));
  return s;
}

}  // namespace selfsame::decoder
