#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "common/model/model_source.h"

namespace selfsame {

// What a model proved that may decide answers: a verifier's, or that of a decoder which runs as a
// whole under the canonical schedule.
struct Authority {
  std::string fingerprint;
  std::vector<int32_t> rungs;  // row counts that passed the self-test, ascending
};

// Runs the self-test of a model under the canonical schedule at DefaultRungs of its largest pass,
// and computes the fingerprint. `source` is what the model was loaded from. FAILED_PRECONDITION
// when no rung of at least `min_rows` rows passes; other errors as RunSelfTest and
// ComputeFingerprint. REQUIRES: as many logit rows as rows in the model's limits.
absl::StatusOr<Authority> ProveAuthority(const ModelSource& source, Model& model, int32_t min_rows);

}  // namespace selfsame
