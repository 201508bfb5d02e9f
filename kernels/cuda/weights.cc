#include "kernels/cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/generate.h"
#include "kernels/float16.h"

namespace selfsame::cuda {
namespace {

constexpr int64_t kConvertedElements = int64_t{4} << 20;

class CudaMatrix final : public PackedMatrix {
 public:
  CudaMatrix(int64_t n, int64_t k, Memory memory)
      : PackedMatrix(n, k), memory_(std::move(memory)) {}
  BFloat16* data() const { return memory_.data<BFloat16>(); }

 private:
  Memory memory_;
};

absl::Status CheckParts(std::span<const MatrixPart> parts) {
  if (parts.empty()) return InvalidArgumentError("parts", "a matrix needs at least one part");
  for (const MatrixPart& part : parts) {
    if (part.data == nullptr || part.rows <= 0 || part.cols <= 0 || part.row_stride < part.cols) {
      return InvalidArgumentError("parts", "a part is empty or its rows overlap");
    }
    if (part.cols != parts.front().cols) {
      return InvalidArgumentError("parts", "the parts of a matrix differ in columns");
    }
  }
  return absl::OkStatus();
}

void ConvertRow(const MatrixPart& part, int64_t row, BFloat16* out) {
  const auto* data = static_cast<const std::byte*>(part.data);
  for (int64_t i = 0; i < part.cols; ++i) {
    const int64_t index = row * part.row_stride + i;
    float value = 0.0f;
    if (part.dtype == DType::kFloat16) {
      uint16_t half = 0;
      std::memcpy(&half, data + index * 2, sizeof(half));
      value = HalfToFloat(half);
    } else {
      std::memcpy(&value, data + index * 4, sizeof(value));
    }
    out[i] = ToBFloat16(value);
  }
}

absl::Status UploadConverted(const MatrixPart& part, cudaStream_t stream, BFloat16* to) {
  const int64_t chunk_rows = std::max<int64_t>(1, kConvertedElements / part.cols);
  std::vector<BFloat16> chunk;
  for (int64_t row = 0; row < part.rows; row += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, part.rows - row);
    chunk.resize(static_cast<size_t>(rows * part.cols));
    for (int64_t i = 0; i < rows; ++i) ConvertRow(part, row + i, chunk.data() + i * part.cols);
    RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(to + row * part.cols, chunk.data(),
                                 chunk.size() * sizeof(BFloat16), cudaMemcpyHostToDevice, stream),
                 "copying weights"));
    RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream), "copying weights"));
  }
  return absl::OkStatus();
}

absl::Status UploadPart(const MatrixPart& part, cudaStream_t stream, BFloat16* to) {
  if (part.dtype != DType::kBFloat16) return UploadConverted(part, stream, to);
  const auto bytes = [](int64_t elements) {
    return static_cast<size_t>(elements) * sizeof(BFloat16);
  };
  const bool is_contiguous = part.row_stride == part.cols;
  return ToStatus(is_contiguous
                      ? cudaMemcpyAsync(to, part.data, bytes(part.rows * part.cols),
                                        cudaMemcpyHostToDevice, stream)
                      : cudaMemcpy2DAsync(to, bytes(part.cols), part.data, bytes(part.row_stride),
                                          bytes(part.cols), static_cast<size_t>(part.rows),
                                          cudaMemcpyHostToDevice, stream),
                  "copying weights");
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedMatrix>> UploadMatrix(std::span<const MatrixPart> parts,
                                                           cudaStream_t stream) {
  RETURN_IF_ERROR(CheckParts(parts));
  const int64_t k = parts.front().cols;
  int64_t n = 0;
  for (const MatrixPart& part : parts) n += part.rows;
  ASSIGN_OR_RETURN(Memory memory, Memory::Create(static_cast<size_t>(n * k) * sizeof(BFloat16)));
  auto matrix = std::make_unique<CudaMatrix>(n, k, std::move(memory));
  BFloat16* to = matrix->data();
  for (const MatrixPart& part : parts) {
    RETURN_IF_ERROR(UploadPart(part, stream, to));
    to += part.rows * part.cols;
  }
  RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream), "copying weights"));
  return std::unique_ptr<PackedMatrix>(std::move(matrix));
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> MakeMatrix(std::span<const SyntheticPart> parts,
                                                         cudaStream_t stream) {
  if (parts.empty()) return InvalidArgumentError("parts", "a matrix needs at least one part");
  const int64_t k = parts.front().cols;
  int64_t n = 0;
  for (const SyntheticPart& part : parts) {
    if (part.rows <= 0 || part.cols <= 0 || part.cols != k) {
      return InvalidArgumentError("parts", "a part is empty, or the parts differ in columns");
    }
    n += part.rows;
  }
  ASSIGN_OR_RETURN(Memory memory, Memory::Create(static_cast<size_t>(n * k) * sizeof(BFloat16)));
  auto matrix = std::make_unique<CudaMatrix>(n, k, std::move(memory));
  BFloat16* to = matrix->data();
  for (const SyntheticPart& part : parts) {
    RETURN_IF_ERROR(ToStatus(RunGenerate(part, to, stream), "generating weights"));
    to += part.rows * part.cols;
  }
  RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream), "generating weights"));
  return std::unique_ptr<PackedMatrix>(std::move(matrix));
}

const BFloat16* Weights(const PackedMatrix& matrix) {
  return static_cast<const CudaMatrix&>(matrix).data();
}

}  // namespace selfsame::cuda
