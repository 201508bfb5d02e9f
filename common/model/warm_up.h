#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/model/model.h"

namespace selfsame {

// What the passes of a service will look like.
struct WarmUpOptions {
  // Row counts that passes are padded to, ascending. None, or beyond the last: they are not padded.
  std::span<const int32_t> rungs = {};
  // Above 0: passes are full of windows of this many rows, as a verifier's are. 0: of single rows,
  // as a decoder's are.
  int32_t window_size = 0;
  int32_t max_sequences = 0;  // of a pass of single rows; 0: as many as the model's limits allow
};

// Runs passes before the first request, so that the device measures, loads and records what such
// passes need: of single rows, those that Ops::WarmUpRowCounts asks for; on a device that records
// passes, one at each of `rungs` of a verifier, and one for each number of rows that are padded.
// All start at position 0 and want logits of every row. `kv` is the cache that will serve, since
// what is recorded is of its memory; its first blocks are overwritten. An error means that the
// device is lost.
absl::Status WarmUp(Model& model, KvCache& kv, const WarmUpOptions& options = {});

}  // namespace selfsame
