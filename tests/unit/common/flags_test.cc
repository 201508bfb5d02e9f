#include "common/process/flags.h"

#include <gtest/gtest.h>

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

TEST(ReportFatalTest, PrintsOneLineAndReturnsOne) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(ReportFatal("program", InvalidArgumentError("--flag", "two\nlines")), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "program: error: --flag: two lines\n");
}

}  // namespace
}  // namespace selfsame
