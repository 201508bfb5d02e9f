#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "kernels/backend.h"
#include "verifier/engine/verdict.h"
#include "verifier/engine/worker.h"

namespace selfsame::verifier {

struct StartupOptions {
  ModelSource source;
  std::string device = "cpu";  // "cpu", "cuda" or "cuda:N"
  bool cuda_graphs = true;     // see BackendOptions
  std::string plan_file = {};  // see BackendOptions
  int32_t thread_count = 0;    // CPU; 0: one for each CPU
  int32_t kv_size_mb = 0;      // of all sessions together
  int32_t context_limit = 0;   // 0: the default, see ResolveContextLimit
  // A pass has at most verify_batch_size * window_size rows.
  int32_t verify_batch_size = 0;
  int32_t window_size = 0;  // most candidates of a window
  int32_t max_sessions = 0;
  std::chrono::nanoseconds max_wait{0};
  bool enable_prefix_caching = true;
};

// The worker and what it stands on.
struct VerifierParts {
  std::unique_ptr<Model> model;
  std::unique_ptr<Worker> worker;  // uses the model
};

// The device that a verifier of these options asks for: for passes of all sessions at once, with
// contexts of full length. Errors: as StartUp.
absl::StatusOr<BackendOptions> DeviceFor(const StartupOptions& options);

// Loads the model under the canonical schedule, runs the self-test and computes the
// fingerprint. `policy` decides windows. Errors: a bad model directory, INVALID_ARGUMENT for a flag
// out of range, FAILED_PRECONDITION when the self-test leaves no rung that holds a window.
absl::StatusOr<VerifierParts> StartUp(const StartupOptions& options, WindowPolicy policy);

// The same on a device that is set up already, for passes of verify_batch_size * window_size rows.
absl::StatusOr<VerifierParts> StartUpOn(std::unique_ptr<Ops> ops, const StartupOptions& options,
                                        WindowPolicy policy);

}  // namespace selfsame::verifier
