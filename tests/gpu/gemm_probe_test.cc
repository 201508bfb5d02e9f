// The data and the comparison that reduction classes are told by.

#include "kernels/cuda/gemm_probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {
namespace {

constexpr int64_t kDepth = 50;
constexpr int32_t kShift = 5;

class GemmProbeTest : public ::testing::Test {
 protected:
  GemmProbeTest() : ops_(MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = 8})) {}

  std::vector<BFloat16> ProbeRows(int32_t rows, int32_t shift, bool has_poison) {
    const auto count = static_cast<size_t>(rows * kDepth);
    const auto x = ops_->Allocate(count * sizeof(BFloat16));
    SELFSAME_CHECK(x.ok());
    EXPECT_EQ(cuda::FillProbeRows(rows, kDepth, shift, has_poison, Rows(*x), nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return Download<BFloat16>(*ops_, (*x)->data(), count);
  }

  // Mismatches of y [rows, n] with each of `class_count` references.
  template <typename T>
  std::array<uint32_t, cuda::kMaxClasses> Mismatches(const std::vector<T>& y,
                                                     const std::vector<T>& references,
                                                     cuda::ProbeComparison comparison) {
    const auto y_on_device = Upload(*ops_, y);
    const auto references_on_device = Upload(*ops_, references);
    const auto counts = Upload(*ops_, std::vector<uint32_t>(cuda::kMaxClasses));
    comparison.y = y_on_device->data();
    comparison.references = references_on_device->data();
    comparison.element_bytes = sizeof(T);
    EXPECT_EQ(cuda::CountMismatches(comparison, static_cast<uint32_t*>(counts->data()), nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto found = Download<uint32_t>(*ops_, counts->data(), cuda::kMaxClasses);
    std::array<uint32_t, cuda::kMaxClasses> result{};
    std::copy(found.begin(), found.end(), result.begin());
    return result;
  }

  std::unique_ptr<Ops> ops_;
};

std::vector<BFloat16> RowOf(const std::vector<BFloat16>& rows, int32_t row) {
  const auto first = rows.begin() + row * kDepth;
  return {first, first + kDepth};
}

TEST_F(GemmProbeTest, RowsRepeatAreShiftedAndPoisoned) {
  constexpr int32_t kRows = 37;
  const auto probes = ProbeRows(cuda::kProbeRows, 0, false);
  const auto repeated = ProbeRows(kRows, 0, false);
  const auto shifted = ProbeRows(kRows, kShift, true);
  const std::vector<BFloat16> poison(kDepth, kPoison);
  for (int32_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(CountDifferent(RowOf(repeated, row), RowOf(probes, row % cuda::kProbeRows)), 0u);
    const auto expected = row % 3 == 2 ? poison : RowOf(probes, (row + kShift) % cuda::kProbeRows);
    EXPECT_EQ(CountDifferent(RowOf(shifted, row), expected), 0u) << row;
  }
  for (int32_t row = 1; row < cuda::kProbeRows; ++row) {
    EXPECT_GT(CountDifferent(RowOf(probes, row), RowOf(probes, row - 1)), 0u) << row;
  }
}

// Half of the probes: their products are far smaller than the sum of the terms' magnitudes.
TEST_F(GemmProbeTest, OddProbesCancelAgainstTheWeights) {
  constexpr int64_t kOutputs = 9;
  const auto count = static_cast<size_t>(2 * kOutputs * kDepth);  // two copies
  const auto w_on_device = ops_->Allocate(count * sizeof(BFloat16));
  ASSERT_TRUE(w_on_device.ok());
  ASSERT_EQ(cuda::FillProbeWeights(kOutputs, kDepth, static_cast<int64_t>(count),
                                   Rows(*w_on_device), nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto w = Download<BFloat16>(*ops_, (*w_on_device)->data(), count);
  EXPECT_EQ(CountDifferent(std::span(w).first(count / 2), std::span(w).last(count / 2)), 0u);
  const auto probes = ProbeRows(cuda::kProbeRows, 0, false);
  for (int32_t row = 1; row < cuda::kProbeRows; row += 2) {
    double products = 0.0;
    double magnitudes = 0.0;
    for (int64_t output = 0; output < kOutputs; ++output) {
      double sum = 0.0;
      for (int64_t i = 0; i < kDepth; ++i) {
        const double term =
            static_cast<double>(ToFloat(probes[static_cast<size_t>(row * kDepth + i)])) *
            ToFloat(w[static_cast<size_t>(output * kDepth + i)]);
        sum += term;
        magnitudes += std::fabs(term);
      }
      products += std::fabs(sum);
    }
    EXPECT_LT(products, 0.1 * magnitudes) << row;
  }
}

TEST_F(GemmProbeTest, OtherBitsAreCountedForEachClassButNotInPoisonedRows) {
  constexpr int32_t kRows = 21;
  constexpr int64_t kOutputs = 70;
  const auto size = static_cast<size_t>(cuda::kProbeRows * kOutputs);
  std::vector<uint32_t> references(2 * size);
  for (size_t i = 0; i < references.size(); ++i) references[i] = static_cast<uint32_t>(i);
  // Agrees with the second reference.
  std::vector<uint32_t> y(kRows * kOutputs);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row = (i / kOutputs + kShift) % cuda::kProbeRows;
    y[i] = references[size + row * kOutputs + i % kOutputs];
  }
  const cuda::ProbeComparison comparison = {
      .n = kOutputs, .rows = kRows, .class_count = 2, .shift = kShift, .has_poison = true};
  const uint32_t compared = 14 * kOutputs;  // rows that are not poisoned
  EXPECT_EQ(Mismatches(y, references, comparison)[0], compared);
  EXPECT_EQ(Mismatches(y, references, comparison)[1], 0u);
  y[2 * kOutputs + 1] = 0;  // poisoned
  y[20 * kOutputs] = 0;     // poisoned
  y[19 * kOutputs + 69] = 0;
  y[0] ^= 0x8000'0000;
  EXPECT_EQ(Mismatches(y, references, comparison)[1], 2u);
  const std::vector<uint16_t> narrow(y.begin(), y.end());
  const std::vector<uint16_t> narrow_references(references.begin(), references.end());
  EXPECT_EQ(Mismatches(narrow, narrow_references, comparison)[1], 1u) << "the high half is cut off";
}

}  // namespace
}  // namespace selfsame::testing
