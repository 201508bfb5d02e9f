#include "decoder/response_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;

v1::GenerateResponse Chunk(int position, int token, const std::string& text) {
  v1::GenerateResponse response;
  v1::Chunk& chunk = *response.mutable_chunk();
  chunk.set_first_position(position);
  chunk.add_token_ids(token);
  chunk.add_logprobs(static_cast<float>(-token));
  chunk.set_text(text);
  return response;
}

v1::GenerateResponse Candidate(int position, int token) {
  v1::GenerateResponse response = Chunk(position, token, "b");
  response.mutable_chunk()->set_is_candidate(true);
  return response;
}

v1::GenerateResponse Retract(int length) {
  v1::GenerateResponse response;
  response.mutable_retract()->set_length(length);
  return response;
}

v1::GenerateResponse Complete() {
  v1::GenerateResponse response;
  response.mutable_complete()->set_output_tokens(1);
  return response;
}

TEST(ResponseQueueTest, GivesMessagesBackInOrder) {
  ResponseQueue queue(1 << 10);
  v1::GenerateResponse started;
  started.mutable_started();
  ASSERT_TRUE(queue.Push(started));
  ASSERT_TRUE(queue.Push(Chunk(10, 1, "a")));
  ASSERT_TRUE(queue.Push(Complete()));
  EXPECT_TRUE(queue.Pop().has_started());
  EXPECT_TRUE(queue.Pop().has_chunk());
  EXPECT_TRUE(queue.Pop().has_complete());
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.size_bytes(), 0);
}

TEST(ResponseQueueTest, MergesChunksThatGoOnFromOneAnother) {
  ResponseQueue queue(1 << 10);
  ASSERT_TRUE(queue.Push(Chunk(10, 1, "a")));
  ASSERT_TRUE(queue.Push(Chunk(11, 2, "b")));
  ASSERT_TRUE(queue.Push(Chunk(12, 3, "c")));
  const v1::Chunk chunk = queue.Pop().chunk();
  EXPECT_EQ(chunk.first_position(), 10);
  EXPECT_THAT(chunk.token_ids(), ElementsAre(1, 2, 3));
  EXPECT_THAT(chunk.logprobs(), ElementsAre(-1.0f, -2.0f, -3.0f));
  EXPECT_EQ(chunk.text(), "abc");
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.size_bytes(), 0);
}

TEST(ResponseQueueTest, CandidatesStayOneByOne) {
  ResponseQueue queue(1 << 10);
  ASSERT_TRUE(queue.Push(Chunk(10, 1, "a")));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(queue.Push(Candidate(11 + i, 2 + i)));
  }
  ASSERT_TRUE(queue.Push(Chunk(13, 4, "c")));
  EXPECT_FALSE(queue.Pop().chunk().is_candidate());
  for (int i = 0; i < 2; ++i) {
    const v1::Chunk candidate = queue.Pop().chunk();
    EXPECT_TRUE(candidate.is_candidate());
    EXPECT_THAT(candidate.token_ids(), ElementsAre(2 + i));
  }
  EXPECT_THAT(queue.Pop().chunk().token_ids(), ElementsAre(4));
  EXPECT_TRUE(queue.empty());
}

TEST(ResponseQueueTest, AClientTooSlowForCandidatesGetsThoseThatFollowWhatItHas) {
  ResponseQueue queue(400);
  ASSERT_TRUE(queue.Push(Chunk(10, 1, "a")));
  int sent = 0;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(queue.Push(Candidate(11 + i, i)));
  EXPECT_LE(queue.size_bytes(), 250);
  queue.Pop();
  for (; !queue.empty(); ++sent) EXPECT_EQ(queue.Pop().chunk().first_position(), 11 + sent);
  ASSERT_GT(sent, 1);
  ASSERT_LT(sent, 50);
  // There is room again, but between what it has and this one some are missing.
  ASSERT_TRUE(queue.Push(Candidate(111, 100)));
  EXPECT_TRUE(queue.empty());
  // Of what it never got nothing is taken back.
  ASSERT_TRUE(queue.Push(Retract(60)));
  EXPECT_TRUE(queue.empty());
  ASSERT_TRUE(queue.Push(Retract(12)));
  EXPECT_EQ(queue.Pop().retract().length(), 12);
  v1::GenerateResponse committed = Chunk(11, 0, "b");
  committed.mutable_chunk()->add_token_ids(7);
  ASSERT_TRUE(queue.Push(committed));
  EXPECT_EQ(queue.Pop().chunk().token_ids_size(), 2);
  ASSERT_TRUE(queue.Push(Candidate(13, 8)));
  EXPECT_EQ(queue.Pop().chunk().first_position(), 13);
  EXPECT_TRUE(queue.empty());
}

TEST(ResponseQueueTest, ChoicesAreShownCandidatesOfTheirOwn) {
  ResponseQueue queue(1 << 12);
  for (int position = 10; position < 13; ++position) {
    for (const int choice : {0, 1}) {
      v1::GenerateResponse candidate = Candidate(position + choice, position);
      candidate.mutable_chunk()->set_choice_index(choice);
      ASSERT_TRUE(queue.Push(candidate));
    }
  }
  v1::GenerateResponse retract = Retract(12);
  retract.mutable_retract()->set_choice_index(1);
  ASSERT_TRUE(queue.Push(retract));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(queue.Pop().chunk().choice_index(), i % 2);
  EXPECT_EQ(queue.Pop().retract().choice_index(), 1);
  EXPECT_TRUE(queue.empty());
}

TEST(ResponseQueueTest, DoesNotMergeOverAGap) {
  ResponseQueue queue(1 << 10);
  ASSERT_TRUE(queue.Push(Chunk(10, 1, "a")));
  ASSERT_TRUE(queue.Push(Chunk(12, 2, "b")));
  EXPECT_EQ(queue.Pop().chunk().token_ids_size(), 1);
  EXPECT_FALSE(queue.empty());
}

TEST(ResponseQueueTest, DoesNotMergeChoicesNorOverASeal) {
  ResponseQueue queue(1 << 10);
  ASSERT_TRUE(queue.Push(Chunk(10, 1, "a")));
  v1::GenerateResponse other = Chunk(11, 2, "b");
  other.mutable_chunk()->set_choice_index(1);
  ASSERT_TRUE(queue.Push(other));
  queue.Seal();
  other.mutable_chunk()->set_first_position(12);
  ASSERT_TRUE(queue.Push(other));
  other.mutable_chunk()->set_first_position(13);
  ASSERT_TRUE(queue.Push(other));
  EXPECT_EQ(queue.Pop().chunk().token_ids_size(), 1);
  EXPECT_EQ(queue.Pop().chunk().token_ids_size(), 1);
  EXPECT_EQ(queue.Pop().chunk().token_ids_size(), 2);
  EXPECT_TRUE(queue.empty());
}

TEST(ResponseQueueTest, MergesAlternatives) {
  ResponseQueue queue(1 << 10);
  for (int i = 0; i < 2; ++i) {
    v1::GenerateResponse response = Chunk(10 + i, i, "a");
    response.mutable_chunk()->add_top_logprobs()->add_token_ids(20 + i);
    ASSERT_TRUE(queue.Push(response));
  }
  const v1::Chunk chunk = queue.Pop().chunk();
  ASSERT_EQ(chunk.top_logprobs_size(), 2);
  EXPECT_THAT(chunk.top_logprobs(0).token_ids(), ElementsAre(20));
  EXPECT_THAT(chunk.top_logprobs(1).token_ids(), ElementsAre(21));
}

TEST(ResponseQueueTest, ALimitThatIsRaisedLetsMoreWait) {
  ResponseQueue queue(64);
  while (queue.Push(Complete())) {
  }
  queue.RaiseLimit(64);
  EXPECT_TRUE(queue.Push(Complete()));
}

TEST(ResponseQueueTest, RefusesMoreThanItsLimit) {
  ResponseQueue queue(64);
  int count = 0;
  while (queue.Push(Chunk(10 + count, 1, "abc"))) ++count;
  EXPECT_GT(count, 1);
  EXPECT_LE(queue.size_bytes(), 64);
  // What was taken is still whole.
  EXPECT_EQ(queue.Pop().chunk().token_ids_size(), count);
}

TEST(ResponseQueueTest, ClearEmpties) {
  ResponseQueue queue(64);
  ASSERT_TRUE(queue.Push(Complete()));
  queue.Clear();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.size_bytes(), 0);
}

}  // namespace
}  // namespace selfsame::decoder
