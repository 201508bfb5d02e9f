// Every configuration of the products of few rows, small enough for compute-sanitizer.

#include "kernels/cuda/stream_gemm.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {
namespace {

// The last tile of outputs is not full.
constexpr int64_t kOutputs = 100;
constexpr int32_t kMaxRows = 51;

class StreamGemmTest : public ::testing::TestWithParam<int64_t> {
 protected:
  StreamGemmTest()
      : ops_(MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = kMaxRows})),
        x_(RandomRows(51, kMaxRows * GetParam())),
        w_(RandomRows(52, kOutputs * GetParam())),
        x_on_device_(Upload(*ops_, x_)),
        w_on_device_(Upload(*ops_, w_)) {}

  // y where the configuration takes `rows` rows; nothing where it does not.
  template <typename T>
  std::vector<T> Run(int config, int32_t rows, T poison) {
    const size_t count = static_cast<size_t>(rows) * kOutputs;
    const auto y = Upload(*ops_, std::vector<T>(count, poison));
    const cuda::StreamGemmArgs args = {.x = Rows(x_on_device_),
                                       .w = Rows(w_on_device_),
                                       .y = y->data(),
                                       .is_float = sizeof(T) == sizeof(float),
                                       .rows = rows,
                                       .n = kOutputs,
                                       .k = GetParam()};
    const cudaError_t error = cuda::RunStreamGemm(config, args, nullptr);
    if (error != cudaSuccess) {
      EXPECT_FALSE(cuda::StreamGemmTakes(config, rows, GetParam()));
      return {};
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return Download<T>(*ops_, y->data(), count);
  }

  std::vector<double> Reference(int32_t rows) const {
    const int64_t k = GetParam();
    std::vector<double> y;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t output = 0; output < kOutputs; ++output) {
        double sum = 0.0;
        for (int64_t i = 0; i < k; ++i) {
          sum += static_cast<double>(ToFloat(x_[static_cast<size_t>(row * k + i)])) *
                 ToFloat(w_[static_cast<size_t>(output * k + i)]);
        }
        y.push_back(sum);
      }
    }
    return y;
  }

  std::unique_ptr<Ops> ops_;
  std::vector<BFloat16> x_;
  std::vector<BFloat16> w_;
  std::unique_ptr<DeviceBuffer> x_on_device_;
  std::unique_ptr<DeviceBuffer> w_on_device_;
};

TEST_P(StreamGemmTest, ConfigurationsMatchADoubleReferenceAndEachOtherToTheBit) {
  for (const int32_t rows : {1, 13, 32, 51}) {
    const std::vector<double> reference = Reference(rows);
    std::vector<float> first;
    std::vector<BFloat16> first_narrow;
    for (int config = 0; config < cuda::kStreamGemmConfigs; ++config) {
      const auto floats = Run(config, rows, ToFloat(kPoison));
      const auto narrow = Run(config, rows, kPoison);
      if (floats.empty()) continue;
      if (first.empty()) {
        first = floats;
        first_narrow = narrow;
        EXPECT_LT(RelativeError(std::vector<double>(floats.begin(), floats.end()), reference),
                  4e-6);
        EXPECT_LT(RelativeError(ToDouble(narrow), reference), 3e-3);
      }
      EXPECT_EQ(CountDifferent(floats, first), 0u) << "config " << config << " rows " << rows;
      EXPECT_EQ(CountDifferent(narrow, first_narrow), 0u) << "config " << config;
    }
    EXPECT_FALSE(first.empty()) << rows;
  }
}

// One stage that is not full; fewer stages than a block has; stages that are used again, and a last
// one that is not full.
INSTANTIATE_TEST_SUITE_P(Depths, StreamGemmTest, ::testing::Values(48, 256, 1040));

}  // namespace
}  // namespace selfsame::testing
