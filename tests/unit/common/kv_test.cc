#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/kv/sequence_state.h"

namespace selfsame {
namespace {

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  BlockPool pool(3);
  std::vector<int32_t> blocks;
  EXPECT_FALSE(pool.Allocate(4, blocks));
  EXPECT_TRUE(blocks.empty());
  EXPECT_EQ(pool.free_count(), 3);
  EXPECT_TRUE(pool.Allocate(3, blocks));
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(blocks, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.free_count(), 0);
}

TEST(BlockPoolDeathTest, RefusesToReleaseTwice) {
  BlockPool pool(2);
  std::vector<int32_t> blocks;
  ASSERT_TRUE(pool.Allocate(1, blocks));
  pool.Release(blocks[0]);
  EXPECT_DEATH(pool.Release(blocks[0]), "check failed");
}

TEST(SequenceStateTest, TakesBlocksAsItGrows) {
  BlockPool pool(4);
  PagedSequenceState state(pool);
  EXPECT_TRUE(state.Reserve(0));
  EXPECT_EQ(state.block_count(), 0);
  EXPECT_TRUE(state.Reserve(1));
  EXPECT_EQ(state.block_count(), 1);
  EXPECT_TRUE(state.Reserve(16));
  EXPECT_EQ(state.block_count(), 1);
  EXPECT_TRUE(state.Reserve(17));
  EXPECT_EQ(state.block_count(), 2);
  EXPECT_FALSE(state.Reserve(16 * 5));
  EXPECT_EQ(state.block_count(), 2);
}

TEST(SequenceStateTest, TruncationFreesWholeBlocksOnly) {
  BlockPool pool(4);
  PagedSequenceState state(pool);
  ASSERT_TRUE(state.Reserve(40));
  state.Advance(40);
  const int32_t first = state.block_table()[0];
  state.Truncate(33);
  EXPECT_EQ(state.block_count(), 3);
  state.Truncate(32);
  EXPECT_EQ(state.block_count(), 2);
  state.Truncate(1);
  EXPECT_EQ(state.block_count(), 1);
  EXPECT_EQ(state.block_table()[0], first);
  EXPECT_EQ(state.length(), 1);
  state.Truncate(20);
  EXPECT_EQ(state.length(), 1);
}

// Room reserved for rows that were never computed goes too.
TEST(SequenceStateTest, TruncationDropsReservedRoom) {
  BlockPool pool(4);
  PagedSequenceState state(pool);
  ASSERT_TRUE(state.Reserve(60));
  state.Advance(10);
  state.Truncate(10);
  EXPECT_EQ(state.block_count(), 1);
  EXPECT_EQ(pool.free_count(), 3);
}

TEST(SequenceStateTest, GivesEverythingBackAtTheEnd) {
  BlockPool pool(4);
  {
    PagedSequenceState state(pool);
    ASSERT_TRUE(state.Reserve(64));
  }
  EXPECT_EQ(pool.free_count(), 4);
}

}  // namespace
}  // namespace selfsame
