#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"

namespace selfsame {

struct SelfTestReport {
  std::vector<int32_t> rungs;         // those that passed, ascending
  std::vector<std::string> failures;  // one line for each that did not
  std::string golden_digest;          // SHA-256 of the probes' logits and KV bits
};

// Runs the verifier's model at every rung and compares bits. Probe sequences, one at position 0 and
// one behind a long prefix, are first computed one row at a time at the smallest rung. Every rung
// must then give the same logits and the same KV for them
//  - as a decode row, as a window and as a prefill chunk,
//  - with logits of every row of the pass, and of some,
//  - at several row offsets, beside neighbours of several lengths, some with NaN everywhere,
//  - with padding, and with NaN in every KV position that is not theirs,
// and the same matrix products of a layer on inputs with heavy cancellation. Rungs that do not are
// left out of the report. REQUIRES: `rungs` ascend, not empty, within the model's limits of rows
// and of logit rows. FAILED_PRECONDITION when the outputs of the reference are not finite; other
// errors are the device's.
absl::StatusOr<SelfTestReport> RunSelfTest(Model& model, std::span<const int32_t> rungs);

}  // namespace selfsame
