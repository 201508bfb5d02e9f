#pragma once

// What the GPU tests share. They need a device and fail without one.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/check.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/ops.h"

namespace selfsame::testing {

inline constexpr BFloat16 kPoison = {0x7fc0};  // NaN

// Ends the process with the error where there is no device.
std::unique_ptr<Ops> MakeCudaOps(const CudaOptions& options);

// Nearly normal, variance 1; a pure function of both arguments.
float PseudoNormal(uint64_t seed, uint64_t index);
std::vector<BFloat16> RandomRows(uint64_t seed, int64_t count, float scale = 1.0f);

// What a call gave that must succeed.
template <typename T>
T Value(absl::StatusOr<T> value) {
  SELFSAME_CHECK(value.ok());
  return *std::move(value);
}

template <typename T>
std::unique_ptr<DeviceBuffer> Upload(Ops& ops, const std::vector<T>& values) {
  auto buffer = ops.Allocate(values.size() * sizeof(T));
  SELFSAME_CHECK(buffer.ok());
  ops.CopyToDevice((*buffer)->data(), values.data(), values.size() * sizeof(T));
  return *std::move(buffer);
}

template <typename T>
std::vector<T> Download(Ops& ops, const void* from_device, size_t count) {
  std::vector<T> values(count);
  ops.CopyToHost(values.data(), from_device, count * sizeof(T));
  return values;
}

inline BFloat16* Rows(const std::unique_ptr<DeviceBuffer>& buffer) {
  return static_cast<BFloat16*>(buffer->data());
}

std::unique_ptr<PackedMatrix> Pack(Ops& ops, const std::vector<BFloat16>& values, int64_t n,
                                   int64_t k);

// A pass of rows of which nothing but their number matters.
struct PlainPass {
  explicit PlainPass(int32_t rows) : zeros(static_cast<size_t>(rows), 0) {
    pass = {.row_count = rows,
            .token_ids = zeros,
            .positions = zeros,
            .sequences = {},
            .logit_rows = {}};
  }
  std::vector<int32_t> zeros;
  Pass pass;
};

// |difference| / |reference|, Euclidean. NaN never passes a comparison with a bound.
double RelativeError(std::span<const double> got, std::span<const double> reference);

// Number of elements whose bits differ. REQUIRES: equal sizes.
size_t CountDifferent(std::span<const BFloat16> a, std::span<const BFloat16> b);
size_t CountDifferent(std::span<const float> a, std::span<const float> b);

// The sum over the lanes of a warp in the order of WarpSum (kernels/cuda/device_math.cuh).
float Butterfly(std::array<float, 32> lanes);

std::vector<double> ToDouble(std::span<const BFloat16> values);

}  // namespace selfsame::testing
