#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "decoder/client/check_compare.h"
#include "decoder/client/check_plan.h"
#include "decoder/client/check_reference.h"
#include "decoder/client/inference_api.h"

namespace selfsame::client {

// Figures of the requests of one kind in one phase, or of several phases added up.
struct RequestFigures {
  int64_t requests = 0;
  int64_t errors = 0;
  // Deterministic: any difference counts. Ordinary: a different token does, so that the control is
  // not satisfied by rounding alone.
  int64_t divergences = 0;
  int64_t logprob_divergences = 0;  // answers with a logprob of other bits
  int64_t output_tokens = 0;
  std::vector<size_t> first_positions{};  // of what made them divergences

  void Add(const RequestFigures& other);
};

struct PhaseFigures {
  std::string name;
  int concurrency = 1;
  double ordinary_share = 0.0;
  RequestFigures deterministic;
  RequestFigures ordinary;
  int64_t windows = 0;
  int64_t rollbacks = 0;
  int64_t rolled_back_tokens = 0;
  int64_t redecoded_tokens = 0;
  int64_t cached_prompt_tokens = 0;  // found in the decoder's prefix cache
  int64_t verifier_cached_prompt_tokens = 0;
  double seconds = 0.0;

  void Add(const PhaseFigures& other);
  int64_t output_tokens() const { return deterministic.output_tokens + ordinary.output_tokens; }
  double tokens_per_second() const;
};

struct CheckResult {
  std::string model;
  std::string fingerprint;
  std::vector<PhaseFigures> phases;
  // Answers of the one-at-a-time phases; empty unless every one of them succeeded.
  std::vector<Answer> reference;
  std::vector<Answer> ordinary_reference;

  PhaseFigures Total() const;
};

struct CheckOptions {
  std::vector<CheckCase> cases;
  std::vector<PhasePlan> phases;
  uint64_t order_seed = 1;
  // Takes the place of this run's own one-at-a-time answers, which are then compared with it too.
  std::optional<SavedReference> reference;
  // Leaves the one-at-a-time phases out: the saved answers, ordinary ones too, stand for them.
  // REQUIRES: a reference and a phase; ordinary answers in it when a phase has ordinary requests.
  bool phases_only = false;
};

// INVALID_ARGUMENT when phases_only lacks what it requires.
absl::Status ValidateOptions(const CheckOptions& options);

// One line for the user. Called from several threads, never at once.
using ProgressCallback = std::function<void(const std::string&)>;

// Sends every case one at a time, deterministic and then ordinary, and again in every phase, and
// compares each answer with that of its kind. A request that fails is counted and goes on; an
// answer under another fingerprint than the reference is FAILED_PRECONDITION at once.
// The error of ValidateOptions before anything is sent.
absl::StatusOr<CheckResult> RunCheckPhases(InferenceApi& server, const CheckOptions& options,
                                           const ProgressCallback& on_progress);

}  // namespace selfsame::client
