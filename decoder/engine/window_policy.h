#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace selfsame::decoder {

// One request's unsubmitted candidates at the moment a cut is considered.
struct WindowQuery {
  int32_t unsubmitted = 0;  // at least 1
  int32_t credit = 0;       // at least 1
  bool has_proposed_end = false;
  // One of them was nearly another token: a mismatch is more likely there than elsewhere.
  bool has_doubt = false;
  // Nothing more will be decoded for this request until a window of it is cut.
  bool is_paused = false;
  // The verifier has no window of this decoder in flight.
  bool is_verifier_idle = false;
  std::chrono::milliseconds oldest_age{0};  // of the first unsubmitted candidate
  int32_t windows_since_rollback = 0;       // committed whole, in a row
};

// Decides when a window is cut. The answer never depends on it (that is tested with random cuts);
// rollback cost and latency do. One thread.
class WindowPolicy {
 public:
  virtual ~WindowPolicy() = default;
  // Candidates to submit now as one window; 0: not yet. Must be positive when the request is paused
  // or has a proposed end.
  virtual int32_t Cut(const WindowQuery& query) = 0;
  // Candidates of a full window of a request whose last so many windows were committed whole. Also
  // bounds how far decoding runs ahead of the verifier, since all of that is lost in a rollback.
  virtual int32_t FullSize(int32_t windows_since_rollback) const = 0;
  // After this age Cut gives a window for anything; empty: age plays no part.
  virtual std::optional<std::chrono::milliseconds> max_age() const = 0;
};

struct WindowOptions {
  int32_t window_size = 64;  // candidates in a window, at most
  // A request's windows start at this size, double with each one committed whole, and start again
  // after a rollback: candidates after a mismatch are lost, so where mismatches are frequent short
  // windows lose less.
  int32_t first_window_size = 8;
  // What an idle verifier is given.
  int32_t min_idle_window_size = 8;
  std::chrono::milliseconds max_age{250};
};

// Cuts a window when it is full, old, ends the answer, holds a doubt, or the verifier would
// otherwise be idle.
class AdaptiveWindowPolicy final : public WindowPolicy {
 public:
  explicit AdaptiveWindowPolicy(const WindowOptions& options);
  int32_t Cut(const WindowQuery& query) override;
  int32_t FullSize(int32_t windows_since_rollback) const override;
  std::optional<std::chrono::milliseconds> max_age() const override { return options_.max_age; }

 private:
  WindowOptions options_;
};

}  // namespace selfsame::decoder
