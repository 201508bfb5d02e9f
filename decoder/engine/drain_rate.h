#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "common/clock.h"

namespace selfsame::decoder {

// How fast requests leave a queue, measured over the last `window`. One thread.
class DrainRate {
 public:
  explicit DrainRate(std::chrono::milliseconds window = std::chrono::seconds(10))
      : window_(window) {}

  // `total` requests have left since the start. Neither argument ever falls.
  void Update(int64_t total, SteadyTime now);
  // How long it takes until `count` more have left; empty while none has. Grows while none does.
  std::optional<std::chrono::milliseconds> TimeFor(int64_t count, SteadyTime now) const;

 private:
  struct Sample {
    SteadyTime time;
    int64_t total = 0;
  };

  const std::chrono::milliseconds window_;
  std::deque<Sample> samples_;  // oldest first; the first may be older than the window
};

}  // namespace selfsame::decoder
