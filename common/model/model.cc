#include "common/model/model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/model/rope.h"

namespace selfsame {
namespace {

BFloat16* Rows(const std::unique_ptr<DeviceBuffer>& buffer) {
  return static_cast<BFloat16*>(buffer->data());
}

absl::Status CheckLimits(const PassLimits& limits, const ModelConfig& config) {
  if (limits.context_limit < 1 || limits.context_limit > config.max_position_embeddings) {
    return InvalidArgumentError(
        "context_limit", absl::StrCat("is ", limits.context_limit, "; the model allows 1 to ",
                                      config.max_position_embeddings));
  }
  if (limits.max_rows < 1 || limits.max_logit_rows < 1) {
    return InvalidArgumentError("max_rows", "a pass needs at least one row and one logit row");
  }
  if (config.head_dim % 16 != 0 || config.head_dim > 256) {
    return FailedPreconditionError(absl::StrCat("config.json: head_dim is ", config.head_dim,
                                                "; it must be a multiple of 16 up to 256"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(std::string_view model_dir,
                                                   const PassLimits& limits,
                                                   std::unique_ptr<Ops> ops) {
  const ModelSource source{.model_dir = std::string(model_dir), .synthetic = std::nullopt};
  return Load(source, limits, std::move(ops));
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const ModelSource& source,
                                                   const PassLimits& limits,
                                                   std::unique_ptr<Ops> ops) {
  ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(source));
  RETURN_IF_ERROR(CheckLimits(limits, config));
  ASSIGN_OR_RETURN(GenerationDefaults defaults, LoadGenerationDefaults(source, config));
  ASSIGN_OR_RETURN(ModelWeights weights, LoadModelWeights(source, config, Rank{}, *ops));
  std::unique_ptr<Model> model(
      new Model(config, std::move(defaults), limits, std::move(ops), std::move(weights)));
  RETURN_IF_ERROR(model->AllocateActivations());
  return model;
}

Model::Model(const ModelConfig& config, GenerationDefaults generation_defaults, PassLimits limits,
             std::unique_ptr<Ops> ops, ModelWeights weights)
    : config_(config),
      generation_defaults_(std::move(generation_defaults)),
      limits_(limits),
      shape_(config_.attention_shape()),
      ops_(std::move(ops)),
      weights_(std::move(weights)) {}

absl::Status Model::AllocateActivations() {
  const auto allocate = [&](std::unique_ptr<DeviceBuffer>& buffer, int64_t rows, int64_t width,
                            size_t element_size) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, ops_->Allocate(static_cast<size_t>(rows * width) * element_size));
    return absl::OkStatus();
  };
  const int64_t rows = limits_.max_rows;
  const int64_t logit_rows = limits_.max_logit_rows;
  constexpr size_t kHalf = sizeof(BFloat16);
  RETURN_IF_ERROR(allocate(residual_, rows, config_.hidden_size, kHalf));
  RETURN_IF_ERROR(allocate(normed_, rows, config_.hidden_size, kHalf));
  RETURN_IF_ERROR(allocate(qkv_, rows, shape_.qkv_width(), kHalf));
  RETURN_IF_ERROR(allocate(attended_, rows, shape_.output_width(), kHalf));
  RETURN_IF_ERROR(allocate(projected_, rows, config_.hidden_size, kHalf));
  RETURN_IF_ERROR(allocate(gate_up_, rows, 2 * config_.intermediate_size, kHalf));
  RETURN_IF_ERROR(allocate(activated_, rows, config_.intermediate_size, kHalf));
  RETURN_IF_ERROR(allocate(gathered_, logit_rows, config_.hidden_size, kHalf));
  RETURN_IF_ERROR(allocate(logits_, logit_rows, config_.vocab_size, sizeof(float)));
  ASSIGN_OR_RETURN(rope_, UploadRopeTable(config_, limits_.context_limit, *ops_));
  return absl::OkStatus();
}

absl::Status Model::Run(const Pass& pass, KvCache& kv, std::span<const SampleRow> sampling,
                        std::span<SampledToken> out) {
  SELFSAME_CHECK(pass.row_count > 0 && pass.row_count <= limits_.max_rows);
  SELFSAME_CHECK(static_cast<int32_t>(pass.logit_rows.size()) <= limits_.max_logit_rows);
  SELFSAME_CHECK(sampling.size() == pass.logit_rows.size() && out.size() == sampling.size());
  ops_->BeginPass(pass);
  Forward(pass, kv);
  if (!sampling.empty()) {
    ops_->Sample(static_cast<const float*>(logits_->data()),
                 static_cast<int32_t>(config_.vocab_size), sampling, out);
  }
  return ops_->EndPass();
}

void Model::Forward(const Pass& pass, KvCache& kv) {
  const int32_t rows = pass.row_count;
  const auto hidden = static_cast<int32_t>(config_.hidden_size);
  const float epsilon = config_.rms_norm_epsilon;

  ops_->Embed(*weights_.embedding, Rows(residual_));
  ops_->RmsNorm(Rows(residual_), VectorData(weights_.layers.front().input_norm), epsilon, rows,
                hidden, Rows(normed_));
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    AttentionBlock(layer, rows, kv.layer(static_cast<int32_t>(i)));
    ops_->AddRmsNorm(Rows(residual_), Rows(projected_), VectorData(layer.post_attention_norm),
                     epsilon, rows, hidden, Rows(normed_));
    MlpBlock(layer, rows);
    const DeviceVector& next_norm =
        i + 1 < weights_.layers.size() ? weights_.layers[i + 1].input_norm : weights_.final_norm;
    ops_->AddRmsNorm(Rows(residual_), Rows(projected_), VectorData(next_norm), epsilon, rows,
                     hidden, Rows(normed_));
  }
  if (pass.logit_rows.empty()) return;
  ops_->GatherLogitRows(Rows(normed_), hidden, Rows(gathered_));
  ops_->Logits(Rows(gathered_), static_cast<int32_t>(pass.logit_rows.size()), weights_.lm_head(),
               static_cast<float*>(logits_->data()));
}

// Reads normed_, leaves the block's output in projected_.
void Model::AttentionBlock(const LayerWeights& layer, int32_t rows, KvLayer kv) {
  ops_->Gemm(Rows(normed_), rows, *layer.qkv, VectorData(layer.qkv_bias), Rows(qkv_));
  const QkNorm norm = {VectorData(layer.q_norm), VectorData(layer.k_norm),
                       config_.rms_norm_epsilon};
  ops_->RopeAndStoreKv(shape_, layer.q_norm != nullptr ? &norm : nullptr,
                       RopeTableOf(*rope_, config_, limits_.context_limit), Rows(qkv_), kv);
  ops_->Attention(shape_, Rows(qkv_), kv, Rows(attended_));
  ops_->Gemm(Rows(attended_), rows, *layer.output, VectorData(layer.output_bias), Rows(projected_));
  ops_->ReduceRanks(Rows(projected_), int64_t{rows} * config_.hidden_size);
}

// Reads normed_, leaves the block's output in projected_.
void Model::MlpBlock(const LayerWeights& layer, int32_t rows) {
  const auto intermediate = static_cast<int32_t>(config_.intermediate_size);
  ops_->Gemm(Rows(normed_), rows, *layer.gate_up, VectorData(layer.gate_up_bias), Rows(gate_up_));
  ops_->SiluMul(Rows(gate_up_), rows, intermediate, Rows(activated_));
  ops_->Gemm(Rows(activated_), rows, *layer.down, VectorData(layer.down_bias), Rows(projected_));
  ops_->ReduceRanks(Rows(projected_), int64_t{rows} * config_.hidden_size);
}

std::vector<float> Model::CopyLogits(int32_t row_count, int32_t first_row) {
  SELFSAME_CHECK(first_row >= 0 && row_count <= limits_.max_logit_rows - first_row);
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  std::vector<float> logits(static_cast<size_t>(row_count) * vocab);
  const float* from = static_cast<const float*>(logits_->data());
  ops_->CopyToHost(logits.data(), from + static_cast<size_t>(first_row) * vocab,
                   logits.size() * sizeof(float));
  return logits;
}

absl::StatusOr<std::unique_ptr<KvCache>> Model::CreateKvCache(int32_t block_count) {
  return KvCache::Create(shape_, static_cast<int32_t>(config_.layer_count), block_count, *ops_);
}

int64_t Model::kv_block_bytes() const {
  return KvCache::BlockBytes(shape_, static_cast<int32_t>(config_.layer_count));
}

}  // namespace selfsame
