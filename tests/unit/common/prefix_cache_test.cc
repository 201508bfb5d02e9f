#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/kv/prefix_index.h"
#include "common/kv/sequence_state.h"

namespace selfsame {
namespace {

BlockKey Key(int32_t parent, int32_t token_id, int32_t adapter = 0) {
  BlockKey key;
  key.parent = parent;
  key.adapter = adapter;
  key.token_ids.fill(token_id);
  return key;
}

TEST(PrefixIndexTest, FindsExactlyTheKeyThatWasInserted) {
  PrefixIndex index(8);
  index.Insert(Key(BlockKey::kNoParent, 5), 3);
  index.Insert(Key(3, 5), 4);
  EXPECT_EQ(index.Find(Key(BlockKey::kNoParent, 5)), 3);
  EXPECT_EQ(index.Find(Key(3, 5)), 4);
  EXPECT_EQ(index.Find(Key(4, 5)), -1);
  EXPECT_EQ(index.Find(Key(BlockKey::kNoParent, 6)), -1);
  EXPECT_EQ(index.Find(Key(BlockKey::kNoParent, 5, /*adapter=*/1)), -1);
  for (size_t i = 0; i < kKvBlockTokens; ++i) {
    BlockKey other = Key(BlockKey::kNoParent, 5);
    other.token_ids[i] = 6;
    EXPECT_EQ(index.Find(other), -1) << i;
  }
  EXPECT_EQ(index.size(), 2);
}

TEST(PrefixIndexTest, AnErasedKeyIsGone) {
  PrefixIndex index(8);
  index.Insert(Key(BlockKey::kNoParent, 5), 3);
  index.Insert(Key(3, 6), 4);
  index.Erase(4);
  EXPECT_EQ(index.Find(Key(3, 6)), -1);
  EXPECT_FALSE(index.Contains(4));
  index.Erase(3);
  EXPECT_EQ(index.size(), 0);
  index.Insert(Key(BlockKey::kNoParent, 6), 3);
  EXPECT_EQ(index.Find(Key(BlockKey::kNoParent, 5)), -1);
  EXPECT_EQ(index.Find(Key(BlockKey::kNoParent, 6)), 3);
}

TEST(PrefixIndexDeathTest, AParentStaysWhileSomethingIsFoundUnderIt) {
  PrefixIndex index(8);
  index.Insert(Key(BlockKey::kNoParent, 5), 3);
  index.Insert(Key(3, 6), 4);
  EXPECT_DEATH(index.Erase(3), "check failed");
  EXPECT_DEATH(index.Insert(Key(7, 6), 5), "check failed");
}

std::vector<int32_t> Take(BlockPool& pool, int32_t count) {
  std::vector<int32_t> blocks;
  EXPECT_TRUE(pool.Allocate(count, blocks));
  return blocks;
}

TEST(BlockPoolTest, APublishedBlockIsCachedOnceNobodyHoldsIt) {
  BlockPool pool(4);
  const int32_t block = Take(pool, 1).front();
  ASSERT_EQ(pool.Publish(Key(BlockKey::kNoParent, 1), block), block);
  EXPECT_EQ(pool.HoldPublished(Key(BlockKey::kNoParent, 1)), block);
  pool.Release(block);
  EXPECT_EQ(pool.cached_count(), 0);
  EXPECT_EQ(pool.free_count(), 3);
  pool.Release(block);
  EXPECT_EQ(pool.cached_count(), 1);
  EXPECT_EQ(pool.free_count(), 4);
  EXPECT_EQ(pool.HoldPublished(Key(BlockKey::kNoParent, 1)), block);
  EXPECT_EQ(pool.cached_count(), 0);
}

TEST(BlockPoolTest, CachedBlocksGiveWayLongestUnheldFirst) {
  BlockPool pool(4);
  for (int32_t token = 0; token < 3; ++token) {
    const int32_t block = Take(pool, 1).front();
    ASSERT_EQ(pool.Publish(Key(BlockKey::kNoParent, token), block), block);
    pool.Release(block);
  }
  EXPECT_EQ(pool.cached_count(), 3);
  // Token 0 was used again.
  pool.Release(pool.HoldPublished(Key(BlockKey::kNoParent, 0)));
  std::vector<int32_t> blocks = Take(pool, 2);  // a free one, and that of token 1
  EXPECT_EQ(pool.HoldPublished(Key(BlockKey::kNoParent, 1)), -1);
  blocks = Take(pool, 1);
  EXPECT_EQ(pool.HoldPublished(Key(BlockKey::kNoParent, 2)), -1);
  EXPECT_NE(pool.HoldPublished(Key(BlockKey::kNoParent, 0)), -1);
  EXPECT_FALSE(pool.Allocate(1, blocks));  // all four are held
}

TEST(BlockPoolTest, WhatIsPublishedTwiceIsKeptOnce) {
  BlockPool pool(4);
  const std::vector<int32_t> blocks = Take(pool, 2);
  ASSERT_EQ(pool.Publish(Key(BlockKey::kNoParent, 1), blocks[0]), blocks[0]);
  EXPECT_EQ(pool.Publish(Key(BlockKey::kNoParent, 1), blocks[1]), blocks[0]);
  EXPECT_EQ(pool.free_count(), 3);
  pool.Release(blocks[0]);
  EXPECT_EQ(pool.cached_count(), 0);
  pool.Release(blocks[0]);
  EXPECT_EQ(pool.cached_count(), 1);
}

TEST(BlockPoolDeathTest, AHeldBlockIsNotPublishedOrReleasedForAnother) {
  BlockPool pool(4);
  const int32_t block = Take(pool, 1).front();
  ASSERT_EQ(pool.Publish(Key(BlockKey::kNoParent, 1), block), block);
  EXPECT_DEATH(static_cast<void>(pool.Publish(Key(BlockKey::kNoParent, 2), block)), "check failed");
  pool.Release(block);
  EXPECT_DEATH(pool.Release(block), "check failed");
}

// Sequences whose token at every position is given by a vector.
class SequencePrefixTest : public ::testing::Test {
 protected:
  static auto At(const std::vector<int32_t>& tokens) {
    return [&tokens](int32_t position) { return tokens.at(static_cast<size_t>(position)); };
  }
  std::unique_ptr<PagedSequenceState> Start(const std::vector<int32_t>& tokens, int32_t max_length,
                                            int32_t adapter = 0) {
    auto state = std::make_unique<PagedSequenceState>(pool_, adapter);
    state->TakeCached(At(tokens), max_length);
    return state;
  }
  // Computes and publishes all of it.
  void Run(PagedSequenceState& state, const std::vector<int32_t>& tokens) {
    const auto length = static_cast<int32_t>(tokens.size());
    ASSERT_TRUE(state.Reserve(length));
    state.Advance(length);
    state.Publish(At(tokens), length);
  }
  static std::vector<int32_t> Tokens(int32_t count) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(i * 7 % 31);
    return tokens;
  }

  BlockPool pool_{8};
};

TEST_F(SequencePrefixTest, WholeBlocksOfTheSamePrefixAreTakenOver) {
  const std::vector<int32_t> tokens = Tokens(48);
  auto first = Start(tokens, 47);
  EXPECT_EQ(first->length(), 0);
  Run(*first, tokens);
  // Just before, on and just after a block's edge.
  for (const auto& [max_length, expected] :
       {std::pair{15, 0}, {16, 16}, {17, 16}, {31, 16}, {32, 32}, {33, 32}, {47, 32}, {48, 48}}) {
    const auto second = Start(tokens, max_length);
    EXPECT_EQ(second->length(), expected) << max_length;
    EXPECT_EQ(second->block_count(), expected / kKvBlockTokens) << max_length;
    for (int32_t i = 0; i < second->block_count(); ++i) {
      EXPECT_EQ(second->block_table()[i], first->block_table()[i]);
    }
  }
}

TEST_F(SequencePrefixTest, AnotherTokenOrAdapterEndsTheMatch) {
  const std::vector<int32_t> tokens = Tokens(48);
  auto first = Start(tokens, 48);
  Run(*first, tokens);
  for (const int32_t position : {0, 15, 16, 17, 31, 32, 47}) {
    std::vector<int32_t> other = tokens;
    ++other[static_cast<size_t>(position)];
    EXPECT_EQ(Start(other, 48)->length(), position / kKvBlockTokens * kKvBlockTokens) << position;
  }
  EXPECT_EQ(Start(tokens, 48, /*adapter=*/1)->length(), 0);
}

TEST_F(SequencePrefixTest, TheSameTokensAfterOtherTokensAreAnotherPrefix) {
  const std::vector<int32_t> tokens(48, 1);
  auto first = Start(tokens, 48);
  Run(*first, tokens);
  EXPECT_EQ(Start(tokens, 48)->length(), 48);
  std::vector<int32_t> other = tokens;
  other.front() = 2;
  const std::vector<int32_t> beginning(other.begin(), other.begin() + 16);
  auto second = Start(beginning, 16);
  Run(*second, beginning);
  EXPECT_EQ(Start(other, 48)->length(), 16);
}

TEST_F(SequencePrefixTest, OnlyFullBlocksBelowThePublishedLengthAreFound) {
  const std::vector<int32_t> tokens = Tokens(48);
  auto first = Start(tokens, 48);
  ASSERT_TRUE(first->Reserve(48));
  EXPECT_EQ(Start(tokens, 48)->length(), 0);  // reserved, not computed
  first->Advance(47);
  EXPECT_EQ(Start(tokens, 48)->length(), 0);  // computed, not published
  first->Publish(At(tokens), 31);
  EXPECT_EQ(Start(tokens, 48)->length(), 16);
  first->Publish(At(tokens), 48);
  EXPECT_EQ(Start(tokens, 48)->length(), 32);  // the third block is not full
}

TEST_F(SequencePrefixTest, AFinishedSequenceLeavesItsBlocksBehind) {
  const std::vector<int32_t> tokens = Tokens(40);
  {
    auto first = Start(tokens, 40);
    Run(*first, tokens);
  }
  EXPECT_EQ(pool_.free_count(), 8);
  EXPECT_EQ(pool_.cached_count(), 2);
  const auto second = Start(tokens, 40);
  EXPECT_EQ(second->length(), 32);
  EXPECT_EQ(pool_.free_count(), 6);
}

TEST_F(SequencePrefixTest, ThePrefixOutlivesItsContinuation) {
  const std::vector<int32_t> tokens = Tokens(64);
  {
    auto first = Start(tokens, 64);
    Run(*first, tokens);
  }
  const std::vector<int32_t> others(6 * kKvBlockTokens, 1);
  auto other = Start(others, 0);
  ASSERT_TRUE(other->Reserve(6 * kKvBlockTokens));  // two more than are free
  EXPECT_EQ(Start(tokens, 64)->length(), 32);
}

TEST_F(SequencePrefixTest, SequencesThatComputeTheSameSideBySideShareInTheEnd) {
  const std::vector<int32_t> tokens = Tokens(40);
  auto first = Start(tokens, 40);
  auto second = Start(tokens, 40);
  ASSERT_TRUE(first->Reserve(40) && second->Reserve(40));
  EXPECT_EQ(pool_.free_count(), 2);
  Run(*first, tokens);
  Run(*second, tokens);
  EXPECT_EQ(pool_.free_count(), 4);
  EXPECT_EQ(second->block_table()[0], first->block_table()[0]);
  EXPECT_EQ(second->block_table()[1], first->block_table()[1]);
  EXPECT_NE(second->block_table()[2], first->block_table()[2]);
}

TEST_F(SequencePrefixTest, WhatAnotherHasComputedMeanwhileIsTakenOver) {
  const std::vector<int32_t> tokens = Tokens(56);
  auto slow = Start(tokens, 55);
  ASSERT_TRUE(slow->Reserve(56));
  slow->Advance(5);
  auto fast = Start(tokens, 55);
  ASSERT_TRUE(fast->Reserve(48));
  fast->Advance(40);
  EXPECT_EQ(pool_.free_count(), 1);
  slow->TakeCached(At(tokens), 55);
  EXPECT_EQ(slow->length(), 5);  // nothing is published yet
  fast->Publish(At(tokens), 40);
  slow->TakeCached(At(tokens), 31);
  EXPECT_EQ(slow->length(), 16);
  slow->TakeCached(At(tokens), 55);
  EXPECT_EQ(slow->length(), 32);
  EXPECT_EQ(slow->block_count(), 4);  // room that was reserved stays
  EXPECT_EQ(slow->block_table()[1], fast->block_table()[1]);
  EXPECT_NE(slow->block_table()[2], fast->block_table()[2]);
  EXPECT_EQ(pool_.free_count(), 3);
  slow->TakeCached(At(tokens), 55);
  EXPECT_EQ(slow->length(), 32);
}

TEST_F(SequencePrefixTest, NothingIsTakenOverBehindABlockOfOnesOwn) {
  const std::vector<int32_t> tokens = Tokens(48);
  auto slow = Start(tokens, 48);
  ASSERT_TRUE(slow->Reserve(48));
  slow->Advance(20);  // not published, so that nobody can say what comes after it
  auto fast = Start(tokens, 48);
  Run(*fast, tokens);
  slow->TakeCached(At(tokens), 48);
  EXPECT_EQ(slow->length(), 20);
  slow->Publish(At(tokens), 20);
  slow->TakeCached(At(tokens), 48);
  EXPECT_EQ(slow->length(), 48);
}

// Rows are computed from length() on: they must not fall into a block that others read.
TEST_F(SequencePrefixTest, TruncationIntoAPublishedBlockGivesUpTheWholeBlock) {
  const std::vector<int32_t> tokens = Tokens(48);
  auto first = Start(tokens, 48);
  Run(*first, tokens);
  auto second = Start(tokens, 48);
  second->Truncate(40);
  EXPECT_EQ(second->length(), 32);
  EXPECT_EQ(second->block_count(), 2);
  ASSERT_TRUE(second->Reserve(48));
  EXPECT_NE(second->block_table()[2], first->block_table()[2]);
  second->Truncate(0);
  EXPECT_EQ(second->length(), 0);
  EXPECT_EQ(pool_.free_count(), 5);
}

TEST_F(SequencePrefixTest, APoolThatCachesNothingPublishesNothing) {
  BlockPool pool(4, /*caches_prefixes=*/false);
  const std::vector<int32_t> tokens = Tokens(32);
  PagedSequenceState first(pool);
  ASSERT_TRUE(first.Reserve(32));
  first.Advance(32);
  first.Publish(At(tokens), 32);
  PagedSequenceState second(pool);
  second.TakeCached(At(tokens), 32);
  EXPECT_EQ(second.length(), 0);
  first.Truncate(0);
  EXPECT_EQ(pool.cached_count(), 0);
  EXPECT_EQ(pool.free_count(), 4);
}

}  // namespace
}  // namespace selfsame
