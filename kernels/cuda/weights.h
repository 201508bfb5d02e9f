#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

// Copies `parts`, stacked along n and converted to bf16 (nearest even), to device memory as a plain
// row-major [n, k]. Waits until it is there.
absl::StatusOr<std::unique_ptr<PackedMatrix>> UploadMatrix(std::span<const MatrixPart> parts,
                                                           cudaStream_t stream);

// The same of parts that are computed on the device.
absl::StatusOr<std::unique_ptr<PackedMatrix>> MakeMatrix(std::span<const SyntheticPart> parts,
                                                         cudaStream_t stream);

// The elements of a matrix that one of these made.
const BFloat16* Weights(const PackedMatrix& matrix);

}  // namespace selfsame::cuda
