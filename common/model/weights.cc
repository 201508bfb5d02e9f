#include "common/model/weights.h"

#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/model/safetensors.h"
#include "common/sha256.h"
#include "kernels/float16.h"

namespace selfsame {
namespace {

int64_t ElementBytes(const Tensor& tensor) {
  return static_cast<int64_t>(DTypeSize(*tensor.dtype));
}

// Checks tensors against the shapes the config asks for, packs what one rank holds and remembers
// every tensor it was asked for, so that the digest covers exactly what the model uses.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, Rank rank, Ops& ops)
      : checkpoint_(checkpoint), config_(config), rank_(rank), ops_(ops) {}

  absl::StatusOr<ModelWeights> Load();

 private:
  absl::Status CheckRank() const;
  absl::StatusOr<LayerWeights> LoadLayer(int64_t index);
  absl::Status LoadAttention(const std::string& prefix, LayerWeights& layer);
  absl::Status LoadMlp(const std::string& prefix, LayerWeights& layer);

  absl::StatusOr<const Tensor*> Require(const std::string& name, const std::vector<int64_t>& shape);

  // This rank's slice of a [rows, cols] matrix, cut along rows or columns.
  absl::StatusOr<MatrixPart> RowSlice(const std::string& name, int64_t rows, int64_t cols);
  absl::StatusOr<MatrixPart> ColumnSlice(const std::string& name, int64_t rows, int64_t cols);
  absl::StatusOr<MatrixPart> Whole(const std::string& name, int64_t rows, int64_t cols);
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const MatrixPart> parts);

  // Appends elements [begin, begin + count) of a [size] vector, as bf16.
  absl::Status AppendVector(const std::string& name, int64_t size, int64_t begin, int64_t count,
                            std::vector<BFloat16>& values);
  absl::StatusOr<DeviceVector> Upload(const std::vector<BFloat16>& values);
  absl::StatusOr<DeviceVector> WholeVector(const std::string& name, int64_t size);
  // A bias that is added once, after the ranks' partial sums: null on all ranks but the first.
  absl::StatusOr<DeviceVector> FirstRankVector(const std::string& name, int64_t size);
  // This rank's slices of several vectors, one after the other.
  absl::StatusOr<DeviceVector> SlicedVectors(
      std::span<const std::pair<std::string, int64_t>> names_and_sizes);

  std::string Digest() const;

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const Rank rank_;
  Ops& ops_;
  std::map<std::string, const Tensor*> used_;
};

absl::Status Loader::CheckRank() const {
  if (rank_.count < 1 || rank_.index < 0 || rank_.index >= rank_.count) {
    return InternalError(absl::StrCat("rank ", rank_.index, " of ", rank_.count));
  }
  const std::pair<const char*, int64_t> divided[] = {
      {"num_attention_heads", config_.head_count},
      {"num_key_value_heads", config_.kv_head_count},
      {"intermediate_size", config_.intermediate_size}};
  for (const auto& [name, value] : divided) {
    if (value % rank_.count != 0) {
      return FailedPreconditionError(absl::StrCat("the model cannot be split over ", rank_.count,
                                                  " ranks: ", name, " is ", value));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const Tensor*> Loader::Require(const std::string& name,
                                              const std::vector<int64_t>& shape) {
  const Tensor* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) {
    return FileError(checkpoint_.path(), absl::StrCat("tensor '", name, "' is missing"));
  }
  if (!tensor->dtype.has_value()) {
    return FileError(tensor->path,
                     absl::StrCat("tensor '", name, "' has dtype ", tensor->dtype_name,
                                  "; supported are BF16, F16 and F32"));
  }
  if (tensor->shape != shape) {
    return FileError(
        tensor->path,
        absl::StrCat("tensor '", name, "' has shape [", absl::StrJoin(tensor->shape, ", "),
                     "] but config.json asks for [", absl::StrJoin(shape, ", "), "]"));
  }
  used_.emplace(name, tensor);
  return tensor;
}

absl::StatusOr<MatrixPart> Loader::Whole(const std::string& name, int64_t rows, int64_t cols) {
  ASSIGN_OR_RETURN(const Tensor* tensor, Require(name, {rows, cols}));
  return MatrixPart{tensor->data, *tensor->dtype, rows, cols, cols};
}

absl::StatusOr<MatrixPart> Loader::RowSlice(const std::string& name, int64_t rows, int64_t cols) {
  ASSIGN_OR_RETURN(const Tensor* tensor, Require(name, {rows, cols}));
  const int64_t count = rows / rank_.count;
  const char* data =
      static_cast<const char*>(tensor->data) + rank_.index * count * cols * ElementBytes(*tensor);
  return MatrixPart{data, *tensor->dtype, count, cols, cols};
}

absl::StatusOr<MatrixPart> Loader::ColumnSlice(const std::string& name, int64_t rows,
                                               int64_t cols) {
  ASSIGN_OR_RETURN(const Tensor* tensor, Require(name, {rows, cols}));
  const int64_t count = cols / rank_.count;
  const char* data =
      static_cast<const char*>(tensor->data) + rank_.index * count * ElementBytes(*tensor);
  return MatrixPart{data, *tensor->dtype, rows, count, cols};
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> Loader::Pack(std::span<const MatrixPart> parts) {
  return ops_.PackMatrix(parts);
}

absl::Status Loader::AppendVector(const std::string& name, int64_t size, int64_t begin,
                                  int64_t count, std::vector<BFloat16>& values) {
  ASSIGN_OR_RETURN(const Tensor* tensor, Require(name, {size}));
  for (int64_t i = begin; i < begin + count; ++i) {
    switch (*tensor->dtype) {
      case DType::kBFloat16:
        values.push_back(static_cast<const BFloat16*>(tensor->data)[i]);
        break;
      case DType::kFloat16:
        values.push_back(ToBFloat16(HalfToFloat(static_cast<const uint16_t*>(tensor->data)[i])));
        break;
      case DType::kFloat32:
        values.push_back(ToBFloat16(static_cast<const float*>(tensor->data)[i]));
        break;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceVector> Loader::Upload(const std::vector<BFloat16>& values) {
  const size_t size_bytes = values.size() * sizeof(BFloat16);
  auto buffer = ops_.Allocate(size_bytes);
  if (!buffer.ok()) return buffer.status();
  ops_.CopyToDevice((*buffer)->data(), values.data(), size_bytes);
  return buffer;
}

absl::StatusOr<DeviceVector> Loader::WholeVector(const std::string& name, int64_t size) {
  std::vector<BFloat16> values;
  RETURN_IF_ERROR(AppendVector(name, size, 0, size, values));
  return Upload(values);
}

absl::StatusOr<DeviceVector> Loader::FirstRankVector(const std::string& name, int64_t size) {
  std::vector<BFloat16> values;
  RETURN_IF_ERROR(AppendVector(name, size, 0, size, values));
  if (rank_.index != 0) return DeviceVector();
  return Upload(values);
}

absl::StatusOr<DeviceVector> Loader::SlicedVectors(
    std::span<const std::pair<std::string, int64_t>> names_and_sizes) {
  std::vector<BFloat16> values;
  for (const auto& [name, size] : names_and_sizes) {
    const int64_t count = size / rank_.count;
    RETURN_IF_ERROR(AppendVector(name, size, rank_.index * count, count, values));
  }
  return Upload(values);
}

absl::Status Loader::LoadAttention(const std::string& prefix, LayerWeights& layer) {
  const int64_t hidden = config_.hidden_size;
  const int64_t q_width = config_.head_count * config_.head_dim;
  const int64_t kv_width = config_.kv_head_count * config_.head_dim;
  const std::string q = prefix + "self_attn.q_proj.";
  const std::string k = prefix + "self_attn.k_proj.";
  const std::string v = prefix + "self_attn.v_proj.";
  const std::string o = prefix + "self_attn.o_proj.";

  ASSIGN_OR_RETURN(const MatrixPart q_part, RowSlice(q + "weight", q_width, hidden));
  ASSIGN_OR_RETURN(const MatrixPart k_part, RowSlice(k + "weight", kv_width, hidden));
  ASSIGN_OR_RETURN(const MatrixPart v_part, RowSlice(v + "weight", kv_width, hidden));
  const MatrixPart qkv_parts[] = {q_part, k_part, v_part};
  ASSIGN_OR_RETURN(layer.qkv, Pack(qkv_parts));
  ASSIGN_OR_RETURN(const MatrixPart o_part, ColumnSlice(o + "weight", hidden, q_width));
  ASSIGN_OR_RETURN(layer.output, Pack({&o_part, 1}));

  if (config_.attention_bias) {
    const std::pair<std::string, int64_t> biases[] = {
        {q + "bias", q_width}, {k + "bias", kv_width}, {v + "bias", kv_width}};
    ASSIGN_OR_RETURN(layer.qkv_bias, SlicedVectors(biases));
  }
  if (config_.output_bias) {
    ASSIGN_OR_RETURN(layer.output_bias, FirstRankVector(o + "bias", hidden));
  }
  if (config_.has_qk_norm) {
    ASSIGN_OR_RETURN(layer.q_norm,
                     WholeVector(prefix + "self_attn.q_norm.weight", config_.head_dim));
    ASSIGN_OR_RETURN(layer.k_norm,
                     WholeVector(prefix + "self_attn.k_norm.weight", config_.head_dim));
  }
  return absl::OkStatus();
}

absl::Status Loader::LoadMlp(const std::string& prefix, LayerWeights& layer) {
  const int64_t hidden = config_.hidden_size;
  const int64_t width = config_.intermediate_size;
  const std::string gate = prefix + "mlp.gate_proj.";
  const std::string up = prefix + "mlp.up_proj.";
  const std::string down = prefix + "mlp.down_proj.";

  ASSIGN_OR_RETURN(const MatrixPart gate_part, RowSlice(gate + "weight", width, hidden));
  ASSIGN_OR_RETURN(const MatrixPart up_part, RowSlice(up + "weight", width, hidden));
  const MatrixPart gate_up_parts[] = {gate_part, up_part};
  ASSIGN_OR_RETURN(layer.gate_up, Pack(gate_up_parts));
  ASSIGN_OR_RETURN(const MatrixPart down_part, ColumnSlice(down + "weight", hidden, width));
  ASSIGN_OR_RETURN(layer.down, Pack({&down_part, 1}));

  if (config_.mlp_bias) {
    const std::pair<std::string, int64_t> biases[] = {{gate + "bias", width}, {up + "bias", width}};
    ASSIGN_OR_RETURN(layer.gate_up_bias, SlicedVectors(biases));
    ASSIGN_OR_RETURN(layer.down_bias, FirstRankVector(down + "bias", hidden));
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerWeights> Loader::LoadLayer(int64_t index) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  LayerWeights layer;
  ASSIGN_OR_RETURN(layer.input_norm,
                   WholeVector(prefix + "input_layernorm.weight", config_.hidden_size));
  RETURN_IF_ERROR(LoadAttention(prefix, layer));
  ASSIGN_OR_RETURN(layer.post_attention_norm,
                   WholeVector(prefix + "post_attention_layernorm.weight", config_.hidden_size));
  RETURN_IF_ERROR(LoadMlp(prefix, layer));
  return layer;
}

std::string Loader::Digest() const {
  Sha256 sha256;
  for (const auto& [name, tensor] : used_) {
    sha256.UpdateField(name)
        .UpdateField(tensor->dtype_name)
        .UpdateField(absl::StrJoin(tensor->shape, ","))
        .Update(tensor->data, tensor->size_bytes);
  }
  return sha256.HexDigest();
}

absl::StatusOr<ModelWeights> Loader::Load() {
  RETURN_IF_ERROR(CheckRank());
  ModelWeights weights;
  ASSIGN_OR_RETURN(const MatrixPart embedding,
                   Whole("model.embed_tokens.weight", config_.vocab_size, config_.hidden_size));
  ASSIGN_OR_RETURN(weights.embedding, Pack({&embedding, 1}));
  for (int64_t i = 0; i < config_.layer_count; ++i) {
    ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(i));
    weights.layers.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(weights.final_norm, WholeVector("model.norm.weight", config_.hidden_size));
  if (!config_.tie_word_embeddings) {
    ASSIGN_OR_RETURN(const MatrixPart head,
                     Whole("lm_head.weight", config_.vocab_size, config_.hidden_size));
    ASSIGN_OR_RETURN(weights.head, Pack({&head, 1}));
  }
  weights.digest = Digest();
  return weights;
}

}  // namespace

absl::StatusOr<ModelWeights> LoadModelWeights(std::string_view model_dir, const ModelConfig& config,
                                              Rank rank, Ops& ops) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model_dir));
  return Loader(checkpoint, config, rank, ops).Load();
}

}  // namespace selfsame
