#include "tests/sim/world.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "tests/sim/random.h"

namespace selfsame::sim {

void World::At(SteadyTime time, std::function<void()> event) {
  events_.emplace(std::pair(std::max(time, now_), next_number_++), std::move(event));
}

bool World::RunNext() {
  if (events_.empty()) return false;
  const auto first = events_.begin();
  now_ = first->first.first;
  const std::function<void()> event = std::move(first->second);
  events_.erase(first);
  event();
  return true;
}

int64_t World::NowMicros() const {
  return std::chrono::duration_cast<Micros>(now_.time_since_epoch() - std::chrono::hours(1))
      .count();
}

void World::Trace(std::string_view what, std::initializer_list<int64_t> values) {
  trace_hash_ = Combine(trace_hash_, static_cast<uint64_t>(NowMicros()));
  for (const char c : what) trace_hash_ = Combine(trace_hash_, static_cast<uint8_t>(c));
  for (const int64_t value : values)
    trace_hash_ = Combine(trace_hash_, static_cast<uint64_t>(value));
  if (!prints_trace_) return;
  std::printf("%10.3f ms  %.*s", static_cast<double>(NowMicros()) / 1000.0,
              static_cast<int>(what.size()), what.data());
  for (const int64_t value : values) std::printf(" %lld", static_cast<long long>(value));
  std::printf("\n");
}

void World::Fail(std::string message) {
  if (has_failed()) return;
  failure_ = absl::StrCat("at ", NowMicros(), " us: ", message);
  if (prints_trace_) std::printf("VIOLATION %s\n", failure_.c_str());
}

}  // namespace selfsame::sim
