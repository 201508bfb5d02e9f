#pragma once

#include <chrono>

namespace selfsame {

using SteadyTime = std::chrono::steady_clock::time_point;

// Time as the services see it: injected, so that a test can stand at any moment it likes. Safe from
// any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyTime Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  SteadyTime Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace selfsame
