#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/kv/kv_cache.h"
#include "kernels/ops.h"

namespace selfsame {

// The largest pass a model will be asked to run; its activation buffers are sized by it.
struct PassLimits {
  int32_t max_rows = 0;
  int32_t max_logit_rows = 0;
  // Positions of a sequence, at most the model's max_position_embeddings.
  int32_t context_limit = 0;
};

// All that the decoder's core and the verifier's worker know of a model: a forward pass over a
// paged KV cache. Model is the one that serves; the simulation puts another in its place. One
// thread at a time.
class ForwardModel {
 public:
  virtual ~ForwardModel() = default;

  // One forward pass over `pass`, then one sampled token for each of pass.logit_rows: `sampling`
  // and `out` have that many entries. Writes the KV of every covered row. REQUIRES: pass within the
  // limits; block tables cover every row; token ids below vocab_size. An error means the device is
  // lost.
  virtual absl::Status Run(const Pass& pass, KvCache& kv, std::span<const SampleRow> sampling,
                           std::span<SampledToken> out) = 0;
  virtual const PassLimits& limits() const = 0;
  virtual int32_t vocab_size() const = 0;
};

}  // namespace selfsame
