#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"

namespace selfsame::sim {

using Micros = std::chrono::microseconds;

// Simulated time: a clock that stands still while an event runs, and the events to come. Events of
// the same moment run in the order in which they were scheduled. Keeps a trace of what happened and
// the first violation of an invariant. One thread.
class World final : public Clock {
 public:
  // A printed trace goes to stdout.
  explicit World(bool prints_trace) : prints_trace_(prints_trace) {}

  SteadyTime Now() const override { return now_; }
  // Runs `event` at `time`, or now if that has passed.
  void At(SteadyTime time, std::function<void()> event);
  void After(Micros delay, std::function<void()> event) { At(now_ + delay, std::move(event)); }
  // Advances to the next event and runs it. False: there is none.
  bool RunNext();

  // Adds to the trace. `what` names the kind of event, `values` tell it from others of its kind.
  void Trace(std::string_view what, std::initializer_list<int64_t> values);
  uint64_t trace_hash() const { return trace_hash_; }

  // An invariant is broken. The first message stands.
  void Fail(std::string message);
  bool has_failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }

 private:
  int64_t NowMicros() const;

  const bool prints_trace_;
  SteadyTime now_ = SteadyTime() + std::chrono::hours(1);
  uint64_t next_number_ = 0;
  std::map<std::pair<SteadyTime, uint64_t>, std::function<void()>> events_;
  uint64_t trace_hash_ = 0;
  std::string failure_;
};

}  // namespace selfsame::sim
