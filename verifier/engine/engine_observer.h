#pragma once

#include <chrono>
#include <cstdint>

#include "verifier/engine/types.h"

namespace selfsame::verifier {

// One pass of the model.
struct PassReport {
  std::chrono::nanoseconds duration{0};
  std::chrono::nanoseconds oldest_wait{0};  // of its oldest row, when the pass began
  int32_t rung = 0;                         // rows, padding included
  int32_t window_rows = 0;
  int32_t prefill_rows = 0;
  int32_t rebuilt_sessions = 0;  // whose KV had been taken away and is computed again
};

// A window whose rows were in a pass.
struct WindowReport {
  std::chrono::nanoseconds queue_time{0};  // from its arrival to the pass's begin
  std::chrono::nanoseconds pass_time{0};
};

// What the verifier holds between passes.
struct StoreReport {
  int32_t sessions = 0;
  double kv_usage = 0.0;  // share of the KV blocks in use, 0 to 1
  // Since the start.
  int64_t evictions = 0;       // sessions whose KV was taken away
  int64_t prefix_queries = 0;  // positions looked up in the prefix cache
  int64_t prefix_hits = 0;     // and found there
  int32_t cached_blocks = 0;   // of KV that no session has
};

// Told what the verifier's engine does, for figures. Called on the engine thread: must not block,
// and must not call back into the engine. A call that is not overridden does nothing.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;

  // `is_resumed`: with committed tokens, so after a loss elsewhere.
  virtual void OnSessionOpened(bool /*is_resumed*/) {}
  // The session ended with an error.
  virtual void OnSessionError() {}
  virtual void OnVerdict(Outcome, bool /*is_opening*/) {}
  virtual void OnPass(const PassReport&) {}
  virtual void OnWindow(const WindowReport&) {}
  // After each turn of the engine's loop.
  virtual void OnStore(const StoreReport&) {}
};

}  // namespace selfsame::verifier
