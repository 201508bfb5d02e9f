#include "decoder/engine/drain_rate.h"

namespace selfsame::decoder {
namespace {

constexpr int kSamplesOfWindow = 64;

}  // namespace

void DrainRate::Update(int64_t total, SteadyTime now) {
  if (!samples_.empty() && samples_.back().total == total) return;
  // Those close together become one, so that the memory is bounded.
  const bool is_close =
      samples_.size() > 1 && now - samples_.back().time < window_ / kSamplesOfWindow;
  if (is_close) {
    samples_.back().total = total;
  } else {
    samples_.push_back({now, total});
  }
  while (samples_.size() > 2 && samples_[1].time <= now - window_) samples_.pop_front();
}

std::optional<std::chrono::milliseconds> DrainRate::TimeFor(int64_t count, SteadyTime now) const {
  if (samples_.size() < 2) return std::nullopt;
  const int64_t left = samples_.back().total - samples_.front().total;
  const auto span = std::chrono::duration_cast<std::chrono::duration<double, std::milli>>(
      now - samples_.front().time);
  return std::chrono::milliseconds(
      static_cast<int64_t>(span.count() * static_cast<double>(count) / static_cast<double>(left)));
}

}  // namespace selfsame::decoder
