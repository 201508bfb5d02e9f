// What the choice of plans says without a device.

#include "kernels/cuda/gemm_search.h"

#include "gtest/gtest.h"

namespace selfsame::cuda {
namespace {

TEST(CanonicalSplitsTest, NarrowAndLongProductsAreCutInTwo) {
  for (const GemmShape& shape : {GemmShape{.n = 4096, .k = 14336}, GemmShape{.n = 2048, .k = 8192},
                                 GemmShape{.n = 8192, .k = 28672}, GemmShape{.n = 8, .k = 8192}}) {
    EXPECT_EQ(CanonicalSplits(shape), 2) << shape.n << " x " << shape.k;
  }
  for (const GemmShape& shape :
       {GemmShape{.n = 4096, .k = 4096}, GemmShape{.n = 4096, .k = 8064},
        GemmShape{.n = 28672, .k = 8192}, GemmShape{.n = 128256, .k = 16384},
        // Slices and outputs that are not aligned.
        GemmShape{.n = 4096, .k = 14400}, GemmShape{.n = 4100, .k = 14336}}) {
    EXPECT_EQ(CanonicalSplits(shape), 1) << shape.n << " x " << shape.k;
  }
}

// A replica that wants floats, or a bias, has the order of all others.
TEST(CanonicalSplitsTest, OutputAndBiasDoNotMatter) {
  EXPECT_EQ(
      CanonicalSplits({.n = 4096, .k = 14336, .output = GemmOutput::kFloat, .has_bias = true}), 2);
}

}  // namespace
}  // namespace selfsame::cuda
