#include "common/process/flags.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "common/errors.h"

namespace selfsame {
namespace {

TEST(CheckFlagRangeTest, AcceptsTheLimitsAndNamesFlagAndLimitsOtherwise) {
  EXPECT_TRUE(CheckFlagRange("--threads", 1, 1, 8).ok());
  EXPECT_TRUE(CheckFlagRange("--threads", 8, 1, 8).ok());
  const absl::Status low = CheckFlagRange("--threads", 0, 1, 8);
  EXPECT_EQ(low.message(), "--threads: must be between 1 and 8, not 0");
  EXPECT_EQ(FieldOf(low), "--threads");
  EXPECT_FALSE(CheckFlagRange("--threads", 9, 1, 8).ok());
}

TEST(CheckRealFlagRangeTest, AcceptsTheLimitsAndRefusesWhatIsNoNumber) {
  EXPECT_TRUE(CheckRealFlagRange("--slack", 0.0, 0, 1).ok());
  EXPECT_TRUE(CheckRealFlagRange("--slack", 1.0, 0, 1).ok());
  EXPECT_EQ(CheckRealFlagRange("--slack", 1.5, 0, 1).message(),
            "--slack: must be between 0 and 1, not 1.5");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {-0.001, kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_EQ(FieldOf(CheckRealFlagRange("--slack", value, 0, 1)), "--slack") << value;
  }
}

TEST(ResolveContextLimitTest, DefaultIsTheSmallerOfModelLimitAndEightThousand) {
  EXPECT_EQ(*ResolveContextLimit(0, 2048), 2048);
  EXPECT_EQ(*ResolveContextLimit(0, 131072), 8192);
}

TEST(ResolveContextLimitTest, FlagIsTakenWithinTheModelLimit) {
  EXPECT_EQ(*ResolveContextLimit(131072, 131072), 131072);
  EXPECT_EQ(ResolveContextLimit(2049, 2048).status().message(),
            "--context_limit: must be between 2 and 2048, not 2049");
  EXPECT_FALSE(ResolveContextLimit(1, 2048).ok());
  EXPECT_FALSE(ResolveContextLimit(-5, 2048).ok());
}

TEST(ParseHostPortTest, CutsAtTheLastColon) {
  EXPECT_EQ(ParseHostPort("--listen", "[::1]:80", 0)->host, "[::1]");
  EXPECT_EQ(ParseHostPort("--listen", "localhost:65535", 0)->port, 65535);
  EXPECT_EQ(ParseHostPort("--verifiers", "localhost:0", 1).status().message(),
            "--verifiers: must be HOST:PORT with a port from 1 to 65535, not \"localhost:0\"");
}

TEST(KvBlockCountTest, HoldsAtLeastOneSequence) {
  // 4 blocks of 16 tokens, a MiB each.
  EXPECT_EQ(*KvBlockCount(4, 1 << 20, 64), 4);
  EXPECT_EQ(KvBlockCount(3, 1 << 20, 64).status().message(),
            "--kv_size_mb: must be at least 4 for one sequence of 64 tokens, not 3");
}

TEST(ReportFatalTest, PrintsOneLineAndReturnsOne) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(ReportFatal("program", InvalidArgumentError("--flag", "two\nlines")), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "program: error: --flag: two lines\n");
}

}  // namespace
}  // namespace selfsame
