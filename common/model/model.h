#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_cache.h"
#include "common/model/config.h"
#include "common/model/forward_model.h"
#include "common/model/model_source.h"
#include "common/model/weights.h"
#include "kernels/ops.h"

namespace selfsame {

// A decoder-only transformer on one device: weights, activation buffers and the forward pass, which
// is written once over Ops. The Ops' schedule decides the arithmetic. One thread at a time.
class Model : public ForwardModel {
 public:
  // Errors: as LoadModelConfig and LoadModelWeights; INVALID_ARGUMENT when a limit is out of range.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const ModelSource& source,
                                                     const PassLimits& limits,
                                                     std::unique_ptr<Ops> ops);
  // Of a Hugging Face directory.
  static absl::StatusOr<std::unique_ptr<Model>> Load(std::string_view model_dir,
                                                     const PassLimits& limits,
                                                     std::unique_ptr<Ops> ops);

  absl::Status Run(const Pass& pass, KvCache& kv, std::span<const SampleRow> sampling,
                   std::span<SampledToken> out) override;

  // Of the latest pass, `row_count` rows of logits from the logit row `first_row` on: [row_count,
  // vocab_size], copied to host memory.
  std::vector<float> CopyLogits(int32_t row_count, int32_t first_row = 0);

  absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(int32_t block_count);
  int64_t kv_block_bytes() const;

  const ModelConfig& config() const { return config_; }
  const GenerationDefaults& generation_defaults() const { return generation_defaults_; }
  const PassLimits& limits() const override { return limits_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(config_.vocab_size); }
  const std::string& weights_digest() const { return weights_.digest; }
  Ops& ops() { return *ops_; }

 private:
  Model(const ModelConfig& config, GenerationDefaults generation_defaults, PassLimits limits,
        std::unique_ptr<Ops> ops, ModelWeights weights);
  absl::Status AllocateActivations();

  void Forward(const Pass& pass, KvCache& kv);
  void AttentionBlock(const LayerWeights& layer, int32_t rows, KvLayer kv);
  void MlpBlock(const LayerWeights& layer, int32_t rows);

  ModelConfig config_;
  GenerationDefaults generation_defaults_;
  PassLimits limits_;
  AttentionShape shape_;
  std::unique_ptr<Ops> ops_;  // outlives everything allocated from it
  ModelWeights weights_;

  // Activations; shapes in rows of the pass.
  std::unique_ptr<DeviceBuffer> residual_;   // [rows, hidden]
  std::unique_ptr<DeviceBuffer> normed_;     // [rows, hidden]
  std::unique_ptr<DeviceBuffer> qkv_;        // [rows, qkv_width]
  std::unique_ptr<DeviceBuffer> attended_;   // [rows, heads * head_dim]
  std::unique_ptr<DeviceBuffer> projected_;  // [rows, hidden]
  std::unique_ptr<DeviceBuffer> gate_up_;    // [rows, 2 * intermediate]
  std::unique_ptr<DeviceBuffer> activated_;  // [rows, intermediate]
  std::unique_ptr<DeviceBuffer> gathered_;   // [logit_rows, hidden]
  std::unique_ptr<DeviceBuffer> logits_;     // [logit_rows, vocab] float
  std::unique_ptr<DeviceBuffer> rope_;  // cos then sin: [context_limit, head_dim / 2] float each
};

}  // namespace selfsame
