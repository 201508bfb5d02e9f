#pragma once

#include <memory>

#include "common/metrics/metrics.h"
#include "verifier/engine/engine_observer.h"

namespace selfsame::verifier {

// Turns what the engine reports into the verifier's metrics (README, "Metrics"). All handles are
// made at construction; a report costs a few atomic operations.
class VerifierMetrics final : public EngineObserver {
 public:
  // `registry` must outlive this object. Once for a registry.
  VerifierMetrics(MetricRegistry& registry, const VerifierInfo& info);
  ~VerifierMetrics() override;

  void OnSessionOpened(bool is_resumed) override;
  void OnSessionError() override;
  void OnVerdict(Outcome outcome, bool is_opening) override;
  void OnPass(const PassReport& pass) override;
  void OnWindow(const WindowReport& window) override;
  void OnStore(const StoreReport& store) override;

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

}  // namespace selfsame::verifier
