#pragma once

// A model of a given shape with random weights, for timing on a device. All layers share one set of
// weights: it is larger than the cache by far, so each layer reads it from memory again.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame::bench {

struct LayerModelShape {
  int32_t layers = 32;
  int32_t hidden = 4096;
  int32_t intermediate = 14336;
  int32_t vocab = 128256;
  AttentionShape attention = {.head_count = 32, .kv_head_count = 8, .head_dim = 128};
};

// Sequences of equal form: `rows` rows each from position `context` on.
struct LayerPass {
  int32_t sequences = 1;
  int32_t rows = 1;
  int32_t context = 0;
};

class LayerModel {
 public:
  static absl::StatusOr<std::unique_ptr<LayerModel>> Create(const LayerModelShape& shape,
                                                            int32_t max_rows, int32_t kv_blocks,
                                                            std::unique_ptr<Ops> ops);

  // One pass with a greedy token for every row. REQUIRES: it fits max_rows and kv_blocks.
  absl::Status Run(const LayerPass& pass);

  // The matrix products of a pass alone, back to back, on what the latest Run left as their inputs:
  // zeros would draw less power and run faster. REQUIRES: the latest Run had as many rows.
  absl::Status RunProducts(const LayerPass& pass);

  // Parts of a pass, `count` times over, between two waits. The latest Run's layout.
  enum class Part { kAttention, kRope, kNorm, kSilu, kSample, kGemms, kHead };
  absl::Status RunPart(Part part, const LayerPass& pass, int32_t count);

 private:
  LayerModel(const LayerModelShape& shape, std::unique_ptr<Ops> ops)
      : shape_(shape), ops_(std::move(ops)) {}
  void Begin(const LayerPass& pass);
  void Layer(int32_t rows);
  void Attend();
  void Products(int32_t rows);

  LayerModelShape shape_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<PackedMatrix> qkv_weights_, output_weights_, gate_up_weights_, down_weights_;
  std::unique_ptr<PackedMatrix> head_weights_;
  std::unique_ptr<DeviceBuffer> norm_, rope_, kv_;
  std::unique_ptr<DeviceBuffer> residual_, normed_, qkv_, attended_, gate_up_, activated_, logits_;
  // Of the pass.
  std::vector<int32_t> tokens_, positions_, logit_rows_, table_;
  std::vector<SequenceRows> sequences_;
  std::vector<SampleRow> sampling_;
  std::vector<SampledToken> sampled_;
};

}  // namespace selfsame::bench
