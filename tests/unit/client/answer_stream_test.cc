#include "decoder/client/answer_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace selfsame::client {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kPromptTokens = 3;
constexpr uint64_t kSeed = 9;

// The whole answer: token ids, and a text for each.
const std::vector<int32_t> kIds = {10, 11, 12, 13, 14, 15};
const std::vector<std::string> kTexts = {"a", "", "bc", "\u00e9", "", "d"};

v1::GenerateResponse Started(const std::string& fingerprint = "F") {
  v1::GenerateResponse response;
  v1::Started& started = *response.mutable_started();
  started.set_prompt_tokens(kPromptTokens);
  started.set_fingerprint(fingerprint);
  started.mutable_params()->set_seed(kSeed);
  started.mutable_params()->set_max_tokens(6);
  return response;
}

// Tokens `first` to `end` of the answer.
v1::GenerateResponse Chunk(int first, int end) {
  v1::GenerateResponse response;
  v1::Chunk& chunk = *response.mutable_chunk();
  chunk.set_first_position(kPromptTokens + first);
  for (int i = first; i < end; ++i) {
    chunk.add_token_ids(kIds[i]);
    chunk.add_logprobs(static_cast<float>(-i));
    chunk.mutable_text()->append(kTexts[i]);
  }
  return response;
}

v1::GenerateResponse Candidate(int index, int32_t token_id, const std::string& text) {
  v1::GenerateResponse response;
  v1::Chunk& chunk = *response.mutable_chunk();
  chunk.set_first_position(kPromptTokens + index);
  chunk.add_token_ids(token_id);
  chunk.set_text(text);
  chunk.set_is_candidate(true);
  return response;
}

v1::GenerateResponse Retract(int length) {
  v1::GenerateResponse response;
  response.mutable_retract()->set_length(kPromptTokens + length);
  return response;
}

v1::GenerateResponse Complete() {
  v1::GenerateResponse response;
  response.mutable_complete()->set_output_tokens(6);
  return response;
}

class AnswerStreamTest : public ::testing::Test {
 protected:
  static v1::GenerateRequest Request(bool is_deterministic) {
    v1::GenerateRequest request;
    request.set_prompt("p");
    request.set_is_deterministic(is_deterministic);
    request.set_stream_candidates(true);
    return request;
  }

  absl::Status Take(const v1::GenerateResponse& event) {
    return stream_.Take(event, [this](const v1::GenerateResponse& passed) {
      if (passed.has_chunk()) {
        const v1::Chunk& chunk = passed.chunk();
        EXPECT_EQ(chunk.first_position(), kPromptTokens + static_cast<int32_t>(ids_.size()));
        ids_.insert(ids_.end(), chunk.token_ids().begin(), chunk.token_ids().end());
        logprobs_.insert(logprobs_.end(), chunk.logprobs().begin(), chunk.logprobs().end());
        text_ += chunk.text();
      }
      events_ += passed.has_started() ? "S" : passed.has_complete() ? "E" : "c";
      return absl::OkStatus();
    });
  }

  void ExpectWhole() const {
    EXPECT_EQ(ids_, kIds);
    EXPECT_THAT(logprobs_, ElementsAre(0, -1, -2, -3, -4, -5));
    EXPECT_EQ(text_, "abc\u00e9d");
    EXPECT_EQ(candidates_, "");
  }

  std::string candidates_;
  AnswerStream stream_{Request(true), [this](std::string_view text) { candidates_ = text; }};
  std::string events_;
  std::vector<int32_t> ids_;
  std::vector<float> logprobs_;
  std::string text_;
};

TEST_F(AnswerStreamTest, CandidatesAreShownTakenBackAndCommitted) {
  ASSERT_TRUE(Take(Started()).ok());
  ASSERT_TRUE(Take(Candidate(0, 10, "a")).ok());
  ASSERT_TRUE(Take(Candidate(1, 11, "")).ok());
  ASSERT_TRUE(Take(Candidate(2, 99, "x")).ok());
  EXPECT_EQ(text_ + candidates_, "ax");
  EXPECT_EQ(ids_.size(), 0u);
  ASSERT_TRUE(Take(Chunk(0, 1)).ok());
  EXPECT_EQ(text_, "a");
  EXPECT_EQ(candidates_, "x");
  ASSERT_TRUE(Take(Retract(2)).ok());
  EXPECT_EQ(candidates_, "");
  ASSERT_TRUE(Take(Chunk(1, 3)).ok());
  ASSERT_TRUE(Take(Candidate(3, 13, "\u00e9")).ok());
  EXPECT_EQ(text_ + candidates_, "abc\u00e9");
  ASSERT_TRUE(Take(Chunk(3, 6)).ok());
  ASSERT_TRUE(Take(Complete()).ok());
  ExpectWhole();
  EXPECT_EQ(events_, "ScccE");
  EXPECT_EQ(stream_.candidate_count(), 4);
  EXPECT_EQ(stream_.retract_count(), 1);
}

TEST_F(AnswerStreamTest, ABrokenPreviewIsInternal) {
  ASSERT_TRUE(Take(Started()).ok());
  EXPECT_TRUE(absl::IsInternal(Take(Candidate(1, 11, ""))));
  EXPECT_TRUE(absl::IsInternal(Take(Chunk(1, 2))));
  EXPECT_TRUE(absl::IsInternal(Take(Retract(1))));
  ASSERT_TRUE(Take(Candidate(0, 99, "x")).ok());
  EXPECT_TRUE(absl::IsInternal(Take(Complete())));
  EXPECT_TRUE(absl::IsInternal(Take(Chunk(0, 1)))) << "committed without a retract";
}

TEST_F(AnswerStreamTest, EventsOutOfTurnAreInternal) {
  EXPECT_TRUE(absl::IsInternal(Take(Candidate(0, 10, "a")))) << "before Started";
  ASSERT_TRUE(Take(Started()).ok());
  EXPECT_TRUE(absl::IsInternal(Take(Started())));
  v1::GenerateResponse other_choice = Candidate(0, 10, "a");
  other_choice.mutable_chunk()->set_choice_index(1);
  EXPECT_TRUE(absl::IsInternal(Take(other_choice)));
  other_choice = Retract(0);
  other_choice.mutable_retract()->set_choice_index(1);
  EXPECT_TRUE(absl::IsInternal(Take(other_choice)));
  v1::GenerateResponse lowest;
  lowest.mutable_retract()->set_length(std::numeric_limits<int32_t>::min());
  EXPECT_TRUE(absl::IsInternal(Take(lowest)));
  ASSERT_TRUE(Take(Chunk(0, 2)).ok());
  stream_.Resume();
  EXPECT_TRUE(absl::IsInternal(Take(Chunk(0, 6)))) << "before another Started";
  ASSERT_TRUE(Take(Started()).ok());
  EXPECT_TRUE(absl::IsInternal(Take(Started())));
  ASSERT_TRUE(Take(Chunk(0, 6)).ok());
  ASSERT_TRUE(Take(Complete()).ok());
  EXPECT_TRUE(absl::IsInternal(Take(Candidate(6, 16, "x")))) << "after Complete";
  EXPECT_TRUE(absl::IsInternal(Take(Retract(6))));
  ExpectWhole();
}

// Who collects refuses them.
TEST_F(AnswerStreamTest, CandidatesThatWereNotAskedForAreCollected) {
  v1::GenerateRequest request = Request(true);
  request.clear_stream_candidates();
  AnswerStream stream(request, nullptr);
  const auto collect = [](const v1::GenerateResponse& event) {
    return event.has_started() ? absl::OkStatus() : absl::InternalError("not asked for");
  };
  ASSERT_TRUE(stream.Take(Started(), collect).ok());
  EXPECT_EQ(stream.Take(Candidate(0, 10, "a"), collect).message(), "not asked for");
  EXPECT_EQ(stream.Take(Retract(0), collect).message(), "not asked for");
  EXPECT_EQ(stream.candidate_count(), 0);
}

TEST_F(AnswerStreamTest, AfterABreakBeforeAnyOutputAllIsCollectedAgain) {
  ASSERT_TRUE(Take(Started("F")).ok());
  ASSERT_TRUE(Take(Candidate(0, 10, "a")).ok());
  EXPECT_FALSE(stream_.has_output());
  stream_.Resume();
  EXPECT_EQ(candidates_, "");
  EXPECT_EQ(stream_.message().SerializeAsString(), Request(true).SerializeAsString());
  for (const auto& event : {Started("G"), Candidate(0, 10, "a"), Chunk(0, 6), Complete()}) {
    ASSERT_TRUE(Take(event).ok());
  }
  ExpectWhole();
  EXPECT_EQ(events_, "SScE");
  EXPECT_EQ(stream_.candidate_count(), 2) << "of both";
}

// The server: streams the answer after the resumed tokens in chunks of `size`.
std::vector<v1::GenerateResponse> Serve(const v1::GenerateRequest& message, int size) {
  std::vector<v1::GenerateResponse> events = {Started()};
  const int count = static_cast<int>(kIds.size());
  for (int i = message.resume_token_ids_size(); i < count; i += size) {
    events.push_back(Chunk(i, std::min(i + size, count)));
  }
  events.push_back(Complete());
  return events;
}

TEST_F(AnswerStreamTest, AfterABreakAnywhereTheAnswerIsWhole) {
  for (const bool is_deterministic : {false, true}) {
    for (int first_size = 1; first_size <= 4; ++first_size) {
      for (int second_size = 1; second_size <= 4; ++second_size) {
        const size_t event_count = Serve(Request(true), first_size).size();
        for (size_t cut = 2; cut < event_count; ++cut) {
          // The last chunk of an ordinary answer is not asked for again.
          if (!is_deterministic && cut + 1 == event_count) continue;
          SCOPED_TRACE(testing::Message() << is_deterministic << ' ' << first_size << ' '
                                          << second_size << ' ' << cut);
          AnswerStream stream(Request(is_deterministic), nullptr);
          std::vector<int32_t> ids;
          std::string text;
          std::string events;
          const auto collect = [&](const v1::GenerateResponse& event) {
            ids.insert(ids.end(), event.chunk().token_ids().begin(),
                       event.chunk().token_ids().end());
            text += event.chunk().text();
            if (!event.has_chunk()) events += event.has_started() ? "S" : "E";
            return absl::OkStatus();
          };
          const auto first = Serve(stream.message(), first_size);
          for (size_t i = 0; i < cut; ++i) ASSERT_TRUE(stream.Take(first[i], collect).ok());
          const std::string before = text;
          // The second stream breaks too, in the midst of what is repeated.
          stream.Resume();
          const auto second = Serve(stream.message(), 1);
          for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(stream.Take(second[i], collect).ok());
          EXPECT_TRUE(text.starts_with(before));
          stream.Resume();
          EXPECT_EQ(stream.message().sampling().seed(), kSeed);
          EXPECT_EQ(stream.message().expected_fingerprint(), is_deterministic ? "F" : "");
          for (const auto& event : Serve(stream.message(), second_size)) {
            const absl::Status status = stream.Take(event, collect);
            ASSERT_TRUE(status.ok()) << status;
          }
          EXPECT_EQ(ids, kIds);
          EXPECT_EQ(text, "abc\u00e9d");
          EXPECT_EQ(events, "SE");
        }
      }
    }
  }
}

TEST_F(AnswerStreamTest, CandidatesAfterABreakFollowTheTextThatStands) {
  ASSERT_TRUE(Take(Started()).ok());
  ASSERT_TRUE(Take(Chunk(0, 3)).ok());
  ASSERT_TRUE(Take(Candidate(3, 13, "\u00e9")).ok());
  stream_.Resume();
  EXPECT_EQ(candidates_, "");
  ASSERT_TRUE(Take(Started()).ok());
  ASSERT_TRUE(Take(Candidate(0, 10, "a")).ok());
  ASSERT_TRUE(Take(Candidate(1, 11, "")).ok());
  ASSERT_TRUE(Take(Candidate(2, 12, "bc")).ok());
  EXPECT_EQ(candidates_, "") << "it stands already";
  ASSERT_TRUE(Take(Candidate(3, 13, "\u00e9")).ok());
  EXPECT_EQ(text_ + candidates_, "abc\u00e9");
  ASSERT_TRUE(Take(Chunk(0, 2)).ok());
  EXPECT_EQ(text_ + candidates_, "abc\u00e9");
  ASSERT_TRUE(Take(Chunk(2, 6)).ok());
  ASSERT_TRUE(Take(Complete()).ok());
  ExpectWhole();
}

TEST_F(AnswerStreamTest, AnotherAnswerAfterABreakIsInternal) {
  ASSERT_TRUE(Take(Started()).ok());
  ASSERT_TRUE(Take(Chunk(0, 2)).ok());
  stream_.Resume();
  EXPECT_TRUE(absl::IsInternal(Take(Started("G"))));
  ASSERT_TRUE(Take(Started()).ok());
  v1::GenerateResponse other = Chunk(0, 2);
  other.mutable_chunk()->set_token_ids(1, 99);
  EXPECT_TRUE(absl::IsInternal(Take(other)));
}

TEST_F(AnswerStreamTest, AnotherTextAfterABreakIsInternal) {
  ASSERT_TRUE(Take(Started()).ok());
  ASSERT_TRUE(Take(Chunk(0, 2)).ok());
  stream_.Resume();
  ASSERT_TRUE(Take(Started()).ok());
  v1::GenerateResponse other = Chunk(0, 2);
  other.mutable_chunk()->set_text("A");
  EXPECT_TRUE(absl::IsInternal(Take(other)));
}

}  // namespace
}  // namespace selfsame::client
