#pragma once

// Models without files: the shape of a real one, weights computed from a seed
// (kernels/synthetic.h). tests/reference/synthetic_weights.py gives the same bits to others.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "common/model/weights.h"
#include "kernels/ops.h"

namespace selfsame {

// How the weights are made. With U(f) a nearly normal number of variance f:
//   embedding: U(1);  norms: 1;  q, k, v, gate, up: U(1 / fan-in)
//   o, down: gain * U(1 / fan-in / (2 * layers)), so that gain says how much of the residual stream
//     the layers make, and so how much of a token depends on more than the token before it
//   head row v: (beta * sum of the embeddings of four bijections of v + U(1)) / sqrt(hidden), so
//     that after each token four others are likely, and a larger beta makes them likelier. Rows of
//     special tokens are zero, and never win.
struct SyntheticModel {
  std::string shape;  // "8b" (Llama-3.1-8B), "3b" (Llama-3.2-3B) or "tiny"
  uint64_t seed = 0;
  // With these the 8B shape's fast path flips as many tokens as a trained model's, SmolLM2-135M's,
  // on the same GPU (bench/engine/flip_share_bench.cc, bench/results/h200.md).
  double gain = 0.5;
  double beta = 0.25;

  // As it is given on the command line, with every value in it.
  std::string Name() const;
};

// Reads SHAPE:SEED[:gain=G][:beta=B]. INVALID_ARGUMENT naming --load_format.
absl::StatusOr<SyntheticModel> ParseSyntheticModel(std::string_view text);

// The head is never tied to the embedding. REQUIRES: `model` comes from ParseSyntheticModel.
ModelConfig SyntheticConfig(const SyntheticModel& model);
// Ends at one special token, which never comes.
GenerationDefaults SyntheticDefaults(const SyntheticModel& model);

// As LoadModelWeights; the digest is one of the model's name.
absl::StatusOr<ModelWeights> MakeSyntheticWeights(const SyntheticModel& model,
                                                  const ModelConfig& config, Rank rank, Ops& ops);

}  // namespace selfsame
