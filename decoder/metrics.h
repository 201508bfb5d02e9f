#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/metrics/metrics.h"
#include "decoder/engine/engine_observer.h"

namespace selfsame::decoder {

// Turns what the engine reports into the decoder's metrics (README, "Metrics"). All handles are
// made at construction; a report costs a few atomic operations.
class DecoderMetrics final : public EngineObserver {
 public:
  // `registry` must outlive this object. Once for a registry.
  explicit DecoderMetrics(MetricRegistry& registry);
  ~DecoderMetrics() override;

  void OnStats(const EngineStats& stats) override;
  void OnStep(const StepReport& step) override;
  void OnOrdinaryWait(int32_t request_count) override;
  void OnRefused(bool is_deterministic, absl::StatusCode code) override;
  void OnStarted(bool is_deterministic, std::chrono::nanoseconds queue_time) override;
  void OnTokens(const TokensReport& tokens) override;
  void OnEnd(const EndReport& end) override;
  void OnSessionOpened(bool is_reopened) override;
  void OnWindow(int32_t size) override;
  void OnRedecoded() override;
  void OnVerdict(const VerdictReport& verdict) override;

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

}  // namespace selfsame::decoder
