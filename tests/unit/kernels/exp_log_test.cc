#include "kernels/cpu/exp_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/sampling_kernels.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace selfsame {
namespace {

// Distance from the exact result in units in the last place of a float.
double UlpError(float got, double exact) {
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
  return std::abs(got - exact) / ulp;
}

TEST(ExpLogTest, ExpIsWithinTwoUnitsInTheLastPlace) {
  double worst = 0.0;
  for (float x = -87.336f; x <= 88.376f; x += 0.000731f) {
    worst = std::max(worst, UlpError(cpu::Exp(x), std::exp(double{x})));
  }
  EXPECT_LE(worst, 2.0);
}

TEST(ExpLogTest, ExpHasExactEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::Exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::Exp(-0.0f), 1.0f);
  EXPECT_EQ(cpu::Exp(-infinity), 0.0f);
  EXPECT_EQ(cpu::Exp(-1e30f), 0.0f);
  EXPECT_EQ(cpu::Exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(cpu::Exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(ExpLogTest, LogIsWithinTwoUnitsInTheLastPlace) {
  testing::Random random(3);
  double worst = 0.0;
  const auto check = [&](float x) {
    if (x != 1.0f) worst = std::max(worst, UlpError(cpu::Log(x), std::log(double{x})));
  };
  for (int i = 0; i < 200000; ++i) {
    check(std::ldexp(1.0f + 0.5f * (1.0f + random.Symmetric()), random.Below(240) - 120));
    check(1.0f + random.Symmetric() * 0x1p-5f);
  }
  for (int i = 1; i < 1000; ++i) check(1.0f - static_cast<float>(i) * 0x1p-24f);
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(cpu::Log(1.0f), 0.0f);
}

// SumExp of one logit below a maximum is the vector form's exp of the difference.
TEST(ExpLogTest, VectorExpHasTheBitsOfScalarExpOnEveryTarget) {
  for (const int64_t target : testing::UsableTargets()) {
    const testing::ForcedTarget forced(target);
    for (float x = -90.0f; x <= 0.0f; x += 0.0173f) {
      ASSERT_EQ(cpu::SumExp(&x, 1, 0.0f), cpu::Exp(x)) << x << " target " << target;
    }
  }
}

}  // namespace
}  // namespace selfsame
