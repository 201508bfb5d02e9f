#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"

namespace selfsame {

// Matrix products over the model's two reduction lengths whose large terms cancel, so that another
// order of summation gives another result in nearly every element. One thread.
class GemmProbe {
 public:
  // Computes the reference at `reference_rung`. `model` must outlive the probe.
  static absl::StatusOr<std::unique_ptr<GemmProbe>> Create(Model& model, int32_t reference_rung,
                                                           int32_t max_rows);

  // Whether the probe row has the reference's bits at the first, middle and last row of a pass of
  // `rung` rows. Errors are the device's.
  absl::StatusOr<bool> Check(int32_t rung);

 private:
  struct Product {
    int32_t width = 0;                   // k
    std::unique_ptr<PackedMatrix> w;     // [kOutputs, width]
    std::vector<BFloat16> probe_row;     // [width]
    std::vector<BFloat16> reference;     // [kOutputs]
    std::vector<float> logit_reference;  // [kOutputs]
  };
  struct Outputs {
    std::vector<BFloat16> rows;     // [rung, kOutputs]
    std::vector<float> logit_rows;  // [rung, kOutputs]
  };

  explicit GemmProbe(Model& model) : model_(model) {}
  absl::Status AddProduct(int32_t width);
  absl::StatusOr<Outputs> Multiply(const Product& product, int32_t rung);

  Model& model_;
  std::unique_ptr<DeviceBuffer> x_;       // [max_rows, largest width] bf16
  std::unique_ptr<DeviceBuffer> y_;       // [max_rows, kOutputs] bf16
  std::unique_ptr<DeviceBuffer> logits_;  // [max_rows, kOutputs] float
  std::vector<Product> products_;
};

}  // namespace selfsame
