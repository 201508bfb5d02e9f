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

GemmPlan Canonical(int32_t rows, int32_t splits) {
  GemmPlan plan = {.rows = rows, .algorithm = {}, .is_in_class = true};
  plan.algorithm.splits = splits;
  return plan;
}

TEST(KeepsTheRuleTest, CutProductsHaveTheSlicesOfTheRule) {
  const GemmShape cut = {.n = 4096, .k = 14336};
  EXPECT_TRUE(KeepsTheRule(cut, {{Canonical(8, 2), Canonical(16, 2)}}));
  // Where the device has no class of two slices.
  EXPECT_TRUE(KeepsTheRule(cut, {{Canonical(8, 1), Canonical(16, 1)}}));
  EXPECT_FALSE(KeepsTheRule(cut, {{Canonical(8, 4), Canonical(16, 4)}}));
  EXPECT_FALSE(KeepsTheRule(cut, {{Canonical(8, 2), Canonical(16, 1)}}));
}

TEST(KeepsTheRuleTest, OtherProductsAreNotCut) {
  const GemmShape whole = {.n = 4096, .k = 4096};
  EXPECT_TRUE(KeepsTheRule(whole, {{Canonical(8, 1), Canonical(16, 1)}}));
  EXPECT_FALSE(KeepsTheRule(whole, {{Canonical(8, 2), Canonical(16, 2)}}));
}

TEST(KeepsTheRuleTest, EveryPlanIsOfTheClass) {
  GemmPlan fast = Canonical(16, 1);
  fast.is_in_class = false;
  EXPECT_FALSE(KeepsTheRule({.n = 4096, .k = 4096}, {{Canonical(8, 1), fast}}));
}

// Plans on disk that were found under another rule must not be taken: a change of it must change
// the text, and then this test.
TEST(CanonicalRuleTest, NamesAllThatTheChoiceDependsOn) {
  EXPECT_EQ(CanonicalRule(),
            "version 1; ladder 512,256,128,64,32,16,8; 24 candidates and 6 of our own; 2 slices "
            "for n <= 8192, k >= 8192; 16 probes, 8 classes");
}

}  // namespace
}  // namespace selfsame::cuda
