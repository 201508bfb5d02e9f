#include "common/canonical/gemm_probe.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "common/errors.h"

namespace selfsame {
namespace {

// Rows of W that are distinct, so that a matrix of any n takes little host memory.
constexpr int32_t kDistinctOutputs = 256;

uint64_t Mix(uint64_t index) {
  uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 31);
}

// In [1, 2).
float Uniform(uint64_t index) { return 1.0f + static_cast<float>(Mix(index) >> 40) * 0x1p-24f; }

// Magnitudes from 1 to 2^12; each element nearly undoes the one before it.
BFloat16 CancellingElement(uint64_t seed, int32_t i) {
  const auto pair = static_cast<uint64_t>(i / 2);
  const float scale = static_cast<float>(1 << (Mix(seed + pair) % 13));
  const float value = scale * Uniform(seed * 31 + static_cast<uint64_t>(i));
  return ToBFloat16(i % 2 == 0 ? value : -value);
}

void AddCancellingRow(uint64_t seed, int32_t k, std::vector<BFloat16>& rows) {
  for (int32_t i = 0; i < k; ++i) rows.push_back(CancellingElement(seed, i));
}

bool HasSameBits(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](BFloat16 x, BFloat16 y) { return x.bits == y.bits; });
}

// y = x · Wᵀ + bias, W [n, k].
struct ProductShape {
  int32_t n = 0;
  int32_t k = 0;
  bool has_bias = false;
  bool operator==(const ProductShape&) const = default;
};

std::vector<ProductShape> LayerProducts(const ModelConfig& config) {
  const AttentionShape attention = config.attention_shape();
  const auto hidden = static_cast<int32_t>(config.hidden_size);
  const auto intermediate = static_cast<int32_t>(config.intermediate_size);
  std::vector<ProductShape> products;
  for (const ProductShape& product :
       {ProductShape{attention.qkv_width(), hidden, config.attention_bias},
        ProductShape{hidden, attention.output_width(), config.output_bias},
        ProductShape{2 * intermediate, hidden, config.mlp_bias},
        ProductShape{hidden, intermediate, config.mlp_bias}}) {
    const bool is_new = std::find(products.begin(), products.end(), product) == products.end();
    if (is_new) products.push_back(product);
  }
  return products;
}

class GemmProbe {
 public:
  static absl::StatusOr<GemmProbe> Create(Model& model, const ProductShape& shape);

  // The outputs of the probe row as the first, middle and last row of a pass of `rung` rows, in one
  // vector: [3, n].
  absl::StatusOr<std::vector<BFloat16>> Multiply(int32_t rung);

 private:
  GemmProbe(Model& model, const ProductShape& shape) : model_(model), shape_(shape) {}
  absl::Status PackWeights();

  Model& model_;
  ProductShape shape_;
  std::unique_ptr<PackedMatrix> w_;
  std::unique_ptr<DeviceBuffer> bias_;  // [n] zeros, or null
  std::unique_ptr<DeviceBuffer> x_;     // [max_rows, k]
  std::unique_ptr<DeviceBuffer> y_;     // [max_rows, n]
};

absl::StatusOr<GemmProbe> GemmProbe::Create(Model& model, const ProductShape& shape) {
  GemmProbe probe(model, shape);
  // A device may run a product with up to the rows of the largest pass.
  const auto rows = static_cast<size_t>(model.limits().max_rows);
  const size_t input_bytes = static_cast<size_t>(shape.k) * sizeof(BFloat16);
  const size_t output_bytes = static_cast<size_t>(shape.n) * sizeof(BFloat16);
  RETURN_IF_ERROR(probe.PackWeights());
  ASSIGN_OR_RETURN(probe.x_, model.ops().Allocate(rows * input_bytes));
  ASSIGN_OR_RETURN(probe.y_, model.ops().Allocate(rows * output_bytes));
  if (shape.has_bias) {
    ASSIGN_OR_RETURN(probe.bias_, model.ops().Allocate(output_bytes));
  }
  return probe;
}

absl::Status GemmProbe::PackWeights() {
  const int32_t distinct = std::min(shape_.n, kDistinctOutputs);
  std::vector<BFloat16> weights(static_cast<size_t>(distinct) * static_cast<size_t>(shape_.k));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = ToBFloat16(Uniform(i));
  std::vector<MatrixPart> parts;
  for (int32_t row = 0; row < shape_.n; row += distinct) {
    parts.push_back({.data = weights.data(),
                     .dtype = DType::kBFloat16,
                     .rows = std::min(distinct, shape_.n - row),
                     .cols = shape_.k,
                     .row_stride = shape_.k});
  }
  ASSIGN_OR_RETURN(w_, model_.ops().PackMatrix(parts));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<BFloat16>> GemmProbe::Multiply(int32_t rung) {
  const auto rows = static_cast<size_t>(rung);
  const std::vector<int32_t> probe_rows = {0, rung / 2, rung - 1};
  std::vector<BFloat16> x;
  x.reserve(rows * static_cast<size_t>(shape_.k));
  for (int32_t row = 0; row < rung; ++row) {
    const bool is_probe = row == 0 || row == rung / 2 || row == rung - 1;
    const uint64_t neighbour = static_cast<uint64_t>(rung) * 1000 + static_cast<uint64_t>(row);
    AddCancellingRow(is_probe ? static_cast<uint64_t>(shape_.k) : neighbour, shape_.k, x);
  }
  Ops& ops = model_.ops();
  ops.CopyToDevice(x_->data(), x.data(), x.size() * sizeof(BFloat16));

  const std::vector<int32_t> zeros(rows, 0);
  ops.BeginPass({.row_count = rung,
                 .token_ids = zeros,
                 .positions = zeros,
                 .sequences = {},
                 .logit_rows = {}});
  auto* const y = static_cast<BFloat16*>(y_->data());
  ops.Gemm(static_cast<const BFloat16*>(x_->data()), rung, *w_,
           bias_ != nullptr ? static_cast<const BFloat16*>(bias_->data()) : nullptr, y);
  RETURN_IF_ERROR(ops.EndPass());

  const auto n = static_cast<size_t>(shape_.n);
  std::vector<BFloat16> outputs(probe_rows.size() * n);
  for (size_t i = 0; i < probe_rows.size(); ++i) {
    ops.CopyToHost(&outputs[i * n], y + static_cast<size_t>(probe_rows[i]) * n,
                   n * sizeof(BFloat16));
  }
  return outputs;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> RungsWithOtherProducts(Model& model,
                                                            std::span<const int32_t> rungs) {
  std::vector<int32_t> other;
  for (const ProductShape& shape : LayerProducts(model.config())) {
    ASSIGN_OR_RETURN(GemmProbe probe, GemmProbe::Create(model, shape));
    std::vector<BFloat16> reference;
    for (const int32_t rung : rungs) {
      ASSIGN_OR_RETURN(const std::vector<BFloat16> outputs, probe.Multiply(rung));
      if (reference.empty()) {
        const auto first_end = outputs.begin() + shape.n;
        for (int i = 0; i < 3; ++i) reference.insert(reference.end(), outputs.begin(), first_end);
      }
      if (!HasSameBits(outputs, reference)) other.push_back(rung);
    }
  }
  std::sort(other.begin(), other.end());
  other.erase(std::unique(other.begin(), other.end()), other.end());
  return other;
}

}  // namespace selfsame
