#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "verifier/engine/types.h"

namespace selfsame::verifier {

// The rows one session waits for. A session either prefills (and its windows wait) or has windows.
struct Demand {
  uint64_t order = 0;                // the session's; identifies it
  int32_t prefill_rows = 0;          // may be cut anywhere
  std::vector<int32_t> window_rows;  // of each pending window, in order; whole windows only
  SteadyTime waiting_since;
};

// What a session gets of a pass: `prefill_rows`, or the rows of its first `window_count` windows.
struct PlannedRun {
  uint64_t order = 0;
  int32_t prefill_rows = 0;
  int32_t window_count = 0;
  int32_t row_count = 0;
};

struct PassPlan {
  std::vector<PlannedRun> runs;  // empty: no pass now
  // With no runs: when to ask again unless something new arrives first.
  std::optional<SteadyTime> wake_at;
};

// Decides when a pass runs and what is in it. A pass is dispatched when it is full or the oldest
// demand has waited for `max_wait`; 0 dispatches whenever the device is idle, for a device that is
// not shared. Windows go first, oldest first, but prefill keeps at least a quarter of the rows
// while any waits; where even the oldest window does not fit into the other three quarters, windows
// and prefill take turns. Pure logic, no clock.
class PassBuilder {
 public:
  // REQUIRES: no window has more rows than `max_rows`.
  PassBuilder(int32_t max_rows, std::chrono::nanoseconds max_wait)
      : max_rows_(max_rows), max_wait_(max_wait) {}

  PassPlan Build(std::span<const Demand> demands, SteadyTime now);

 private:
  const int32_t max_rows_;
  const std::chrono::nanoseconds max_wait_;
  bool prefill_is_owed_ = false;
};

// The smallest rung that holds `rows`. REQUIRES: there is one.
int32_t RungFor(std::span<const int32_t> rungs, int32_t rows);

}  // namespace selfsame::verifier
