#include "common/canonical/rungs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace selfsame {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

TEST(Rungs, AreDenseWhereSmallAndEndAtTheLargestPass) {
  EXPECT_THAT(DefaultRungs(1), ElementsAre(1));
  EXPECT_THAT(DefaultRungs(30), ElementsAre(1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 30));
  EXPECT_THAT(DefaultRungs(64), ElementsAre(1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64));
  const std::vector<int32_t> rungs = DefaultRungs(512);
  EXPECT_EQ(rungs.back(), 512);
  EXPECT_TRUE(std::is_sorted(rungs.begin(), rungs.end()));
  EXPECT_THAT(rungs, Each(Ge(1)));
}

}  // namespace
}  // namespace selfsame
