#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "decoder/engine/engine.h"
#include "decoder/engine/types.h"

namespace selfsame::decoder {

// One pass of the model.
struct StepReport {
  int32_t row_count = 0;      // without padding
  int32_t request_count = 0;  // with rows in it
  std::chrono::nanoseconds duration{0};
};

// Tokens that became part of an answer together.
struct TokensReport {
  bool is_deterministic = false;
  int32_t token_count = 0;
  // Of the request's first token: how long ago it arrived. Of later ones: since those before.
  bool is_first = false;
  std::chrono::nanoseconds since{0};
  int32_t prompt_length = 0;
};

// The last event of a request.
struct EndReport {
  bool is_deterministic = false;
  absl::StatusCode code = absl::StatusCode::kOk;
  FinishReason reason = FinishReason::kStop;  // where the code is OK
  std::chrono::nanoseconds age{0};            // since it arrived
};

// A verdict that was believed.
struct VerdictReport {
  bool is_opening = false;
  Outcome outcome = Outcome::kCommit;
  // Since the window was submitted; for an opening verdict, since the session was opened.
  std::chrono::nanoseconds latency{0};
  // The part of it that the verifier does not account for: the way there and back. Unset when it
  // accounts for nothing.
  std::optional<std::chrono::nanoseconds> network_time = std::nullopt;
  bool is_rollback = false;  // a candidate was dropped for another token
  int32_t dropped = 0;       // candidates
  // With Outcome::kRollback: index in its window of the first candidate that differs.
  int32_t mismatch_index = 0;
};

// Told what the engine does, for figures. Called on the engine thread between and within steps, and
// OnRefused from any thread: must not block, and must not call back into the engine. A call that is
// not overridden does nothing.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;

  // After each turn of the engine's loop.
  virtual void OnStats(const EngineStats&) {}
  virtual void OnStep(const StepReport&) {}
  // Once for a step, if at all: ordinary requests that could have had rows in it, and had none
  // because a verdict was missing. At least one.
  virtual void OnOrdinaryWait(int32_t /*request_count*/) {}

  // A request that Submit did not take.
  virtual void OnRefused(bool /*is_deterministic*/, absl::StatusCode) {}
  virtual void OnStarted(bool /*is_deterministic*/, std::chrono::nanoseconds /*queue_time*/) {}
  virtual void OnTokens(const TokensReport&) {}
  virtual void OnEnd(const EndReport&) {}

  // `is_reopened`: the request has had a session before, here or elsewhere.
  virtual void OnSessionOpened(bool /*is_reopened*/) {}
  virtual void OnWindow(int32_t /*size*/) {}
  // A candidate at a position that had one before.
  virtual void OnRedecoded() {}
  virtual void OnVerdict(const VerdictReport&) {}
};

}  // namespace selfsame::decoder
