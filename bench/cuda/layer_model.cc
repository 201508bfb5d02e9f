#include "bench/cuda/layer_model.h"

#include <algorithm>
#include <numeric>

#include "common/errors.h"

namespace selfsame::bench {
namespace {

constexpr int32_t kMaxPositions = 16384;

std::vector<BFloat16> RandomElements(int64_t count) {
  std::vector<BFloat16> values(static_cast<size_t>(count));
  uint64_t state = 1;
  for (BFloat16& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto centred = static_cast<int32_t>(state >> 40) - (1 << 23);
    value = ToBFloat16(static_cast<float>(centred) * 0x1p-29f);
  }
  return values;
}

BFloat16* Data(const std::unique_ptr<DeviceBuffer>& buffer) {
  return static_cast<BFloat16*>(buffer->data());
}

int32_t BlocksFor(int32_t length) { return (length + kKvBlockTokens - 1) / kKvBlockTokens; }

}  // namespace

absl::StatusOr<std::unique_ptr<LayerModel>> LayerModel::Create(const LayerModelShape& shape,
                                                               int32_t max_rows, int32_t kv_blocks,
                                                               std::unique_ptr<Ops> ops) {
  std::unique_ptr<LayerModel> model(new LayerModel(shape, std::move(ops)));
  Ops& device = *model->ops_;
  const AttentionShape& attention = shape.attention;
  const int64_t most =
      int64_t{shape.hidden} * std::max({2 * shape.intermediate, shape.vocab, attention.qkv_width(),
                                        attention.output_width()});
  const std::vector<BFloat16> elements = RandomElements(most);
  const auto pack = [&](std::unique_ptr<PackedMatrix>& matrix, int64_t n,
                        int64_t k) -> absl::Status {
    const MatrixPart part = {.data = elements.data(), .rows = n, .cols = k, .row_stride = k};
    ASSIGN_OR_RETURN(matrix, device.PackMatrix({&part, 1}));
    return absl::OkStatus();
  };
  const auto allocate = [&](std::unique_ptr<DeviceBuffer>& buffer, int64_t count,
                            size_t element_bytes) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, device.Allocate(static_cast<size_t>(count) * element_bytes));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(pack(model->qkv_weights_, attention.qkv_width(), shape.hidden));
  RETURN_IF_ERROR(pack(model->output_weights_, shape.hidden, attention.output_width()));
  RETURN_IF_ERROR(pack(model->gate_up_weights_, 2 * shape.intermediate, shape.hidden));
  RETURN_IF_ERROR(pack(model->down_weights_, shape.hidden, shape.intermediate));
  RETURN_IF_ERROR(pack(model->head_weights_, shape.vocab, shape.hidden));
  const int64_t rows = max_rows;
  RETURN_IF_ERROR(allocate(model->norm_, shape.hidden, 2));
  RETURN_IF_ERROR(allocate(model->rope_, int64_t{kMaxPositions} * attention.head_dim, 4));
  const int64_t block = int64_t{2} * attention.kv_head_count * kKvBlockTokens * attention.head_dim;
  RETURN_IF_ERROR(allocate(model->kv_, kv_blocks * block, 2));
  for (int64_t at = 0; at < kv_blocks * block; at += most) {
    const int64_t count = std::min(most, kv_blocks * block - at);
    device.CopyToDevice(Data(model->kv_) + at, elements.data(), static_cast<size_t>(count) * 2);
  }
  const std::vector<float> angles(
      static_cast<size_t>(kMaxPositions) * static_cast<size_t>(attention.head_dim), 0.75f);
  device.CopyToDevice(model->rope_->data(), angles.data(), angles.size() * sizeof(float));
  device.CopyToDevice(model->norm_->data(), elements.data(), static_cast<size_t>(shape.hidden) * 2);
  RETURN_IF_ERROR(allocate(model->residual_, rows * shape.hidden, 2));
  RETURN_IF_ERROR(allocate(model->normed_, rows * shape.hidden, 2));
  RETURN_IF_ERROR(allocate(model->qkv_, rows * attention.qkv_width(), 2));
  RETURN_IF_ERROR(allocate(model->attended_, rows * attention.output_width(), 2));
  RETURN_IF_ERROR(allocate(model->gate_up_, rows * 2 * shape.intermediate, 2));
  RETURN_IF_ERROR(allocate(model->activated_, rows * shape.intermediate, 2));
  RETURN_IF_ERROR(allocate(model->logits_, rows * shape.vocab, 4));
  return model;
}

void LayerModel::Begin(const LayerPass& pass) {
  const int32_t rows = pass.sequences * pass.rows;
  const int32_t blocks = BlocksFor(pass.context + pass.rows);
  table_.resize(static_cast<size_t>(pass.sequences * blocks));
  std::iota(table_.begin(), table_.end(), 0);
  sequences_.clear();
  positions_.clear();
  for (int32_t i = 0; i < pass.sequences; ++i) {
    sequences_.push_back({.first_row = i * pass.rows,
                          .row_count = pass.rows,
                          .first_position = pass.context,
                          .block_table = table_.data() + i * blocks});
    for (int32_t row = 0; row < pass.rows; ++row) positions_.push_back(pass.context + row);
  }
  tokens_.resize(static_cast<size_t>(rows));
  for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<int32_t>(i * 131 + 7);
  logit_rows_.resize(static_cast<size_t>(rows));
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  sampling_.assign(static_cast<size_t>(rows), {});
  sampled_.resize(static_cast<size_t>(rows));
  ops_->BeginPass({.row_count = rows,
                   .token_ids = tokens_,
                   .positions = positions_,
                   .sequences = sequences_,
                   .logit_rows = logit_rows_});
}

void LayerModel::Attend() {
  ops_->Attention(shape_.attention, Data(qkv_), {Data(kv_)}, Data(attended_));
}

void LayerModel::Products(int32_t rows) {
  ops_->Gemm(Data(normed_), rows, *qkv_weights_, nullptr, Data(qkv_));
  ops_->Gemm(Data(attended_), rows, *output_weights_, nullptr, Data(normed_));
  ops_->Gemm(Data(normed_), rows, *gate_up_weights_, nullptr, Data(gate_up_));
  ops_->Gemm(Data(activated_), rows, *down_weights_, nullptr, Data(normed_));
}

void LayerModel::Layer(int32_t rows) {
  const auto* angles = static_cast<const float*>(rope_->data());
  const RopeTable table = {.cos = angles,
                           .sin = angles + kMaxPositions * (shape_.attention.head_dim / 2),
                           .max_positions = kMaxPositions};
  ops_->Gemm(Data(normed_), rows, *qkv_weights_, nullptr, Data(qkv_));
  ops_->RopeAndStoreKv(shape_.attention, nullptr, table, Data(qkv_), {Data(kv_)});
  Attend();
  ops_->Gemm(Data(attended_), rows, *output_weights_, nullptr, Data(normed_));
  ops_->AddRmsNorm(Data(residual_), Data(normed_), Data(norm_), 1e-5f, rows, shape_.hidden,
                   Data(normed_));
  ops_->Gemm(Data(normed_), rows, *gate_up_weights_, nullptr, Data(gate_up_));
  ops_->SiluMul(Data(gate_up_), rows, shape_.intermediate, Data(activated_));
  ops_->Gemm(Data(activated_), rows, *down_weights_, nullptr, Data(normed_));
  ops_->AddRmsNorm(Data(residual_), Data(normed_), Data(norm_), 1e-5f, rows, shape_.hidden,
                   Data(normed_));
}

absl::Status LayerModel::Run(const LayerPass& pass) {
  const int32_t rows = pass.sequences * pass.rows;
  Begin(pass);
  ops_->Embed(*head_weights_, Data(residual_));
  ops_->RmsNorm(Data(residual_), Data(norm_), 1e-5f, rows, shape_.hidden, Data(normed_));
  for (int32_t i = 0; i < shape_.layers; ++i) Layer(rows);
  ops_->GatherLogitRows(Data(normed_), shape_.hidden, Data(attended_));
  auto* logits = static_cast<float*>(logits_->data());
  ops_->Logits(Data(attended_), rows, *head_weights_, logits);
  ops_->Sample(logits, shape_.vocab, sampling_, sampled_);
  return ops_->EndPass();
}

absl::Status LayerModel::RunProducts(const LayerPass& pass) {
  const int32_t rows = pass.sequences * pass.rows;
  Begin(pass);
  for (int32_t i = 0; i < shape_.layers; ++i) Products(rows);
  ops_->Logits(Data(attended_), rows, *head_weights_, static_cast<float*>(logits_->data()));
  return ops_->EndPass();
}

absl::Status LayerModel::RunPart(Part part, const LayerPass& pass, int32_t count) {
  const int32_t rows = pass.sequences * pass.rows;
  const auto* angles = static_cast<const float*>(rope_->data());
  auto* logits = static_cast<float*>(logits_->data());
  Begin(pass);
  for (int32_t i = 0; i < count; ++i) {
    switch (part) {
      case Part::kAttention:
        Attend();
        break;
      case Part::kRope:
        ops_->RopeAndStoreKv(shape_.attention, nullptr, {angles, angles, kMaxPositions}, Data(qkv_),
                             {Data(kv_)});
        break;
      case Part::kNorm:
        ops_->AddRmsNorm(Data(residual_), Data(normed_), Data(norm_), 1e-5f, rows, shape_.hidden,
                         Data(normed_));
        break;
      case Part::kSilu:
        ops_->SiluMul(Data(gate_up_), rows, shape_.intermediate, Data(activated_));
        break;
      case Part::kSample:
        ops_->Sample(logits, shape_.vocab, sampling_, sampled_);
        break;
      case Part::kGemms:
        Products(rows);
        break;
      case Part::kHead:
        ops_->Logits(Data(attended_), rows, *head_weights_, logits);
        break;
    }
  }
  return ops_->EndPass();
}

}  // namespace selfsame::bench
