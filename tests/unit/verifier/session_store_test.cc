#include "verifier/engine/session_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"

namespace selfsame::verifier {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kBlocks = 8;

class SessionStoreTest : public ::testing::Test {
 protected:
  // A session with room for, and KV of, `blocks` blocks. Idle: it has its opening verdict.
  StoredSession* Add(uint64_t id, int32_t blocks, bool is_idle, uint64_t stream_id = 1) {
    SessionOpening opening;
    opening.session_id = id;
    opening.prompt_token_ids = {1, 2, 3};
    opening.max_tokens = 10;
    Session session(std::move(opening), 1000, SteadyTime());
    if (is_idle) session.Open({.token_id = 4, .logprob = 0.0f});
    StoredSession* stored = *store_.Open({stream_id, id}, std::move(session));
    EXPECT_TRUE(Use(stored, blocks));
    return stored;
  }

  bool Use(StoredSession* stored, int32_t blocks) {
    const bool fits = store_.ReserveAndPin(*stored, blocks * kKvBlockTokens);
    if (fits) stored->state->Advance(blocks * kKvBlockTokens);
    store_.UnpinAll();
    return fits;
  }

  static int32_t BlocksOf(const StoredSession* stored) { return stored->state->block_count(); }

  SessionStore store_{kBlocks, 4};
};

TEST_F(SessionStoreTest, SessionsAreFoundByStreamAndId) {
  StoredSession* a = Add(7, 0, true, 1);
  StoredSession* b = Add(7, 0, true, 2);
  EXPECT_EQ(store_.Find({1, 7}), a);
  EXPECT_EQ(store_.Find({2, 7}), b);
  EXPECT_EQ(store_.Find({3, 7}), nullptr);
  EXPECT_THAT(store_.SessionsOf(2), ElementsAre(7));
}

TEST_F(SessionStoreTest, AnIdInUseAndOneSessionTooManyAreRefused) {
  for (uint64_t id = 1; id <= 4; ++id) Add(id, 0, true);
  SessionOpening opening;
  opening.prompt_token_ids = {1};
  const auto duplicate = store_.Open({1, 1}, Session(opening, 100, SteadyTime()));
  EXPECT_EQ(duplicate.status().code(), absl::StatusCode::kInvalidArgument);
  const auto too_many = store_.Open({1, 5}, Session(opening, 100, SteadyTime()));
  EXPECT_EQ(too_many.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfterMsOf(too_many.status()).has_value());
}

TEST_F(SessionStoreTest, CloseFreesBlocks) {
  Add(1, 5, true);
  EXPECT_EQ(store_.free_blocks(), 3);
  store_.Close({1, 1});
  EXPECT_EQ(store_.free_blocks(), kBlocks);
  store_.Close({1, 1});
}

TEST_F(SessionStoreTest, TheLeastRecentlyUsedIdleSessionGoesFirst) {
  StoredSession* oldest = Add(1, 2, true);
  StoredSession* a = Add(2, 2, true);
  StoredSession* b = Add(3, 2, true);
  ASSERT_TRUE(Use(a, 2));  // now b is the least recently used
  StoredSession* c = Add(4, 4, false);
  EXPECT_EQ(BlocksOf(c), 4);
  EXPECT_EQ(BlocksOf(b), 0);
  EXPECT_EQ(BlocksOf(a), 2);
  EXPECT_EQ(BlocksOf(oldest), 2);
  EXPECT_EQ(store_.eviction_count(), 1);
}

TEST_F(SessionStoreTest, ASessionTakesBlocksOfYoungerWaitingOnesOnly) {
  Add(1, 0, true);
  StoredSession* a = Add(2, 3, false);
  StoredSession* b = Add(3, 3, false);
  StoredSession* c = Add(4, 2, false);
  EXPECT_FALSE(Use(c, 3));
  EXPECT_EQ(BlocksOf(c), 2);
  EXPECT_TRUE(Use(b, 4));
  EXPECT_EQ(BlocksOf(c), 0);
  EXPECT_EQ(BlocksOf(a), 3);
}

TEST_F(SessionStoreTest, PinnedBlocksStay) {
  StoredSession* a = Add(1, 4, true);
  StoredSession* b = Add(2, 4, true);
  ASSERT_TRUE(store_.ReserveAndPin(*a, 4 * kKvBlockTokens));
  EXPECT_FALSE(store_.ReserveAndPin(*b, 5 * kKvBlockTokens));
  EXPECT_EQ(BlocksOf(a), 4);
  store_.UnpinAll();
}

TEST_F(SessionStoreTest, TheOldestIsTakenLastAndOnlyWhileIdle) {
  StoredSession* oldest = Add(1, 4, true);
  StoredSession* b = Add(2, 4, false);
  EXPECT_TRUE(Use(b, kBlocks));
  EXPECT_EQ(BlocksOf(oldest), 0);
}

TEST_F(SessionStoreTest, TheOldestWaitingSessionAlwaysFindsRoom) {
  StoredSession* oldest = Add(1, 1, false);
  Add(2, 3, true);
  Add(3, 2, false);
  Add(4, 2, false);
  EXPECT_TRUE(Use(oldest, kBlocks));
  EXPECT_EQ(BlocksOf(oldest), kBlocks);
}

}  // namespace
}  // namespace selfsame::verifier
