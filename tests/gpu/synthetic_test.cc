// Weights made on the device are those made on the host.

#include "kernels/synthetic.h"

#include "gtest/gtest.h"
#include "kernels/cuda/weights.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {
namespace {

void ExpectSameBits(std::span<const SyntheticPart> parts) {
  const auto ops = MakeCudaOps({});
  auto matrix = ops->GenerateMatrix(parts);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const std::vector<BFloat16> expected = SyntheticRows(parts);
  ASSERT_EQ(static_cast<size_t>((*matrix)->n() * (*matrix)->k()), expected.size());
  EXPECT_EQ(
      CountDifferent(Download<BFloat16>(*ops, cuda::Weights(**matrix), expected.size()), expected),
      0u);
}

TEST(SyntheticTest, StackedSlicesHaveTheHostsBits) {
  const SyntheticPart parts[] = {
      {.key = 0xfedcba9876543210u,
       .rows = 70,
       .cols = 333,
       .first_row = 1000,
       .first_col = 40,
       .tensor_cols = 1000,
       .scale = 3.1e-7f},
      {.key = 3, .rows = 5, .cols = 333, .tensor_cols = 333, .scale = 2.7e-5f}};
  ExpectSameBits(parts);
}

TEST(SyntheticTest, TheHeadHasTheHostsBits) {
  const SyntheticPart head = {.key = 11,
                              .rows = 300,
                              .cols = 512,
                              .first_row = 127800,
                              .tensor_cols = 4096,
                              .scale = 4.1e-10f,
                              .image_rows = 128000,
                              .image_key = 12,
                              .image_weight = 307,
                              .noise_weight = kSyntheticWeightUnit,
                              .multipliers = {127999, 77777, 3, 64001},
                              .offsets = {1, 127000, 0, 5}};
  ExpectSameBits({&head, 1});
}

}  // namespace
}  // namespace selfsame::testing
