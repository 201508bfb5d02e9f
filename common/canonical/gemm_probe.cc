#include "common/canonical/gemm_probe.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/errors.h"

namespace selfsame {
namespace {

constexpr int32_t kOutputs = 48;

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

std::vector<BFloat16> CancellingRow(uint64_t seed, int32_t width) {
  std::vector<BFloat16> row(static_cast<size_t>(width));
  for (int32_t i = 0; i < width; ++i) row[static_cast<size_t>(i)] = CancellingElement(seed, i);
  return row;
}

bool HasSameBits(const void* a, const void* b, size_t size_bytes) {
  return std::memcmp(a, b, size_bytes) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GemmProbe>> GemmProbe::Create(Model& model, int32_t reference_rung,
                                                             int32_t max_rows) {
  const auto hidden = static_cast<int32_t>(model.config().hidden_size);
  const auto intermediate = static_cast<int32_t>(model.config().intermediate_size);
  const auto rows = static_cast<size_t>(max_rows);
  std::unique_ptr<GemmProbe> probe(new GemmProbe(model));
  Ops& ops = model.ops();
  ASSIGN_OR_RETURN(probe->x_, ops.Allocate(rows * sizeof(BFloat16) *
                                           static_cast<size_t>(std::max(hidden, intermediate))));
  ASSIGN_OR_RETURN(probe->y_, ops.Allocate(rows * kOutputs * sizeof(BFloat16)));
  ASSIGN_OR_RETURN(probe->logits_, ops.Allocate(rows * kOutputs * sizeof(float)));
  RETURN_IF_ERROR(probe->AddProduct(hidden));
  RETURN_IF_ERROR(probe->AddProduct(intermediate));
  for (Product& product : probe->products_) {
    ASSIGN_OR_RETURN(const Outputs outputs, probe->Multiply(product, reference_rung));
    product.reference.assign(outputs.rows.begin(), outputs.rows.begin() + kOutputs);
    product.logit_reference.assign(outputs.logit_rows.begin(),
                                   outputs.logit_rows.begin() + kOutputs);
  }
  return probe;
}

absl::Status GemmProbe::AddProduct(int32_t width) {
  std::vector<float> weights(static_cast<size_t>(kOutputs) * static_cast<size_t>(width));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = Uniform(i);
  const MatrixPart part{.data = weights.data(),
                        .dtype = DType::kFloat32,
                        .rows = kOutputs,
                        .cols = width,
                        .row_stride = width};
  Product product{.width = width,
                  .w = nullptr,
                  .probe_row = CancellingRow(1, width),
                  .reference = {},
                  .logit_reference = {}};
  ASSIGN_OR_RETURN(product.w, model_.ops().PackMatrix({&part, 1}));
  products_.push_back(std::move(product));
  return absl::OkStatus();
}

// The probe row is at the first, middle and last row; the others depend on the rung.
absl::StatusOr<GemmProbe::Outputs> GemmProbe::Multiply(const Product& product, int32_t rung) {
  const auto width = static_cast<size_t>(product.width);
  const auto rows = static_cast<size_t>(rung);
  std::vector<BFloat16> x;
  for (int32_t row = 0; row < rung; ++row) {
    const bool is_probe = row == 0 || row == rung / 2 || row == rung - 1;
    const std::vector<BFloat16> values =
        is_probe ? product.probe_row
                 : CancellingRow(static_cast<uint64_t>(rung) * 1000 + static_cast<uint64_t>(row),
                                 product.width);
    x.insert(x.end(), values.begin(), values.end());
  }
  Ops& ops = model_.ops();
  ops.CopyToDevice(x_->data(), x.data(), rows * width * sizeof(BFloat16));

  const std::vector<int32_t> zeros(rows, 0);
  std::vector<int32_t> all_rows(rows);
  std::iota(all_rows.begin(), all_rows.end(), 0);
  ops.BeginPass({.row_count = rung,
                 .token_ids = zeros,
                 .positions = zeros,
                 .sequences = {},
                 .logit_rows = all_rows});
  ops.Gemm(static_cast<BFloat16*>(x_->data()), rung, *product.w, nullptr,
           static_cast<BFloat16*>(y_->data()));
  ops.Logits(static_cast<BFloat16*>(x_->data()), rung, *product.w,
             static_cast<float*>(logits_->data()));
  RETURN_IF_ERROR(ops.EndPass());

  Outputs outputs{.rows = std::vector<BFloat16>(rows * kOutputs),
                  .logit_rows = std::vector<float>(rows * kOutputs)};
  ops.CopyToHost(outputs.rows.data(), y_->data(), rows * kOutputs * sizeof(BFloat16));
  ops.CopyToHost(outputs.logit_rows.data(), logits_->data(), rows * kOutputs * sizeof(float));
  return outputs;
}

absl::StatusOr<bool> GemmProbe::Check(int32_t rung) {
  for (const Product& product : products_) {
    ASSIGN_OR_RETURN(const Outputs outputs, Multiply(product, rung));
    for (const int32_t row : {0, rung / 2, rung - 1}) {
      const auto offset = static_cast<size_t>(row) * kOutputs;
      if (!HasSameBits(&outputs.rows[offset], product.reference.data(),
                       kOutputs * sizeof(BFloat16)) ||
          !HasSameBits(&outputs.logit_rows[offset], product.logit_reference.data(),
                       kOutputs * sizeof(float))) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace selfsame
