// Answers that go on from tokens the client has.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/errors.h"
#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

using ::testing::HasSubstr;

class ResumeTest : public CoreTest {
 protected:
  // The text that belongs to the first `count` tokens.
  static std::string TextOfFirst(const GenerationRequest& request,
                                 const std::vector<int32_t>& token_ids, size_t count) {
    auto output = OutputStream::Create(TinyWorld::Get().tokenizer(), request.stop_strings,
                                       request.stop_token_ids, request.max_tokens,
                                       request.logit_rules.min_tokens);
    std::string text;
    for (size_t i = 0; i < count; ++i) text += output->Push(token_ids[i]);
    return text;
  }

  // Resumes the answer after each of its tokens but the last; all at once, in one batch.
  void ResumeEverywhere(const GenerationRequest& request) {
    const TinyWorld::Expected whole = TinyWorld::Get().Answer(request);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (size_t cut = 0; cut < whole.token_ids.size(); ++cut) {
      GenerationRequest resumed = request;
      resumed.resume_token_ids.assign(whole.token_ids.begin(),
                                      whole.token_ids.begin() + static_cast<int64_t>(cut));
      sinks.push_back(Submit(resumed));
    }
    RunAll(sinks);
    for (size_t cut = 0; cut < sinks.size(); ++cut) {
      SCOPED_TRACE(cut);
      const RecordingSink& sink = *sinks[cut];
      ASSERT_TRUE(sink.complete.has_value()) << sink.status;
      const auto from = static_cast<int64_t>(cut);
      EXPECT_EQ(sink.token_ids,
                std::vector<int32_t>(whole.token_ids.begin() + from, whole.token_ids.end()));
      EXPECT_EQ(sink.logprobs,
                std::vector<float>(whole.logprobs.begin() + from, whole.logprobs.end()));
      EXPECT_EQ(TextOfFirst(request, whole.token_ids, cut) + sink.text, whole.text);
      EXPECT_EQ(sink.chunks.front().first_position,
                static_cast<int32_t>(request.prompt_token_ids.size() + cut));
      EXPECT_EQ(sink.complete->prompt_tokens,
                static_cast<int32_t>(request.prompt_token_ids.size()));
      EXPECT_EQ(sink.complete->output_tokens, static_cast<int32_t>(whole.token_ids.size()));
      EXPECT_EQ(sink.complete->reason, whole.reason);
      AddUp(sink);
    }
    ExpectNothingLeft();
  }

  absl::Status Refusal(const GenerationRequest& request) {
    auto sink = Submit(request);
    EXPECT_TRUE(sink->is_done());
    EXPECT_FALSE(sink->started.has_value());
    return sink->status;
  }
};

TEST_F(ResumeTest, TheAnswerGoesOnFromEveryToken) {
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    Create({.window_size = 7});
    ResumeEverywhere(TestRequest(i, 40));
  }
  EXPECT_GT(rollbacks_, 0);
}

TEST_F(ResumeTest, TheAnswerGoesOnInsideOfWhatBeginsAStopString) {
  int stopped = 0;
  for (int i = 0; i < 8 && stopped < 2; ++i) {
    SCOPED_TRACE(i);
    GenerationRequest request = TestRequest(i, 60);
    const std::string text = TinyWorld::Get().Answer(request).text;
    const size_t middle = text.find_first_of("abcdefghijklmnopqrstuvwxyz", text.size() / 3);
    if (middle == std::string::npos || middle + 1 >= text.size() || text[middle + 1] <= 0) continue;
    request.stop_strings = {text.substr(middle, 2)};
    Create({.window_size = 7});
    ResumeEverywhere(request);
    ++stopped;
  }
  EXPECT_EQ(stopped, 2);
}

TEST_F(ResumeTest, ResumedTokensCountForPenaltiesAndMinTokens) {
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    GenerationRequest request = TestRequest(i, 40);
    const std::vector<int32_t> neutral = TinyWorld::Get().Answer(request).token_ids;
    request.logit_rules.repetition_penalty = 1.3f;
    request.logit_rules.presence_penalty = 0.4f;
    request.logit_rules.frequency_penalty = 0.2f;
    request.logit_rules.min_tokens = 20;
    for (int32_t id = 20; id < 512; id += 16) request.stop_token_ids.push_back(id);
    ASSERT_NE(TinyWorld::Get().Answer(request).token_ids, neutral);
    Create({.window_size = 7});
    ResumeEverywhere(request);
  }
}

TEST_F(ResumeTest, CandidatesFollowTheResumedTokens) {
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    Create({.window_size = 7});
    GenerationRequest request = TestRequest(i, 40);
    request.stream_candidates = true;
    ResumeEverywhere(request);
  }
  EXPECT_GT(rollbacks_, 0);
}

TEST_F(ResumeTest, TheVerifierGetsResumedTokensAsCommittedOnes) {
  Create({});
  GenerationRequest request = TestRequest(1, 30);
  const TinyWorld::Expected whole = TinyWorld::Get().Answer(request);
  request.resume_token_ids.assign(whole.token_ids.begin(), whole.token_ids.begin() + 5);
  RunAll({Submit(request)});
  ASSERT_EQ(verifiers_[0]->openings.size(), 1u);
  EXPECT_EQ(verifiers_[0]->openings[0].prompt_token_ids, request.prompt_token_ids);
  EXPECT_EQ(verifiers_[0]->openings[0].committed_token_ids, request.resume_token_ids);
  EXPECT_EQ(verifiers_[0]->openings[0].max_tokens, 30);
}

TEST_F(ResumeTest, OrdinaryRequestsGoOnToo) {
  Create({});
  GenerationRequest request = TestRequest(1, 30);
  request.is_deterministic = false;
  request.resume_token_ids = {10, 11, 12, 13};
  auto sink = Submit(request);
  RunAll({sink});
  ASSERT_TRUE(sink->complete.has_value()) << sink->status;
  EXPECT_EQ(sink->chunks.front().first_position,
            static_cast<int32_t>(request.prompt_token_ids.size()) + 4);
  EXPECT_EQ(sink->complete->output_tokens, 4 + static_cast<int32_t>(sink->token_ids.size()));
  EXPECT_LE(sink->complete->output_tokens, 30);
  ExpectNothingLeft();
}

TEST_F(ResumeTest, AnAnswerThatHasEndedDoesNotGoOn) {
  Create({});
  GenerationRequest request = TestRequest(1, 4);
  const auto byte = [](char c) { return 3 + static_cast<int32_t>(c); };
  request.resume_token_ids = {byte('a'), kTestEos, byte('b')};
  absl::Status status = Refusal(request);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(FieldOf(status), "resume_token_ids[1]");
  EXPECT_THAT(std::string(status.message()), HasSubstr("stop token"));

  request.resume_token_ids = {byte('a'), byte('b'), byte('c')};
  request.stop_strings = {"bc"};
  status = Refusal(request);
  EXPECT_EQ(FieldOf(status), "resume_token_ids[2]");
  EXPECT_THAT(std::string(status.message()), HasSubstr("stop string"));

  request.resume_token_ids = {byte('a'), byte('b'), byte('d'), byte('e')};
  status = Refusal(request);
  EXPECT_EQ(FieldOf(status), "resume_token_ids[3]");
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_tokens"));
}

}  // namespace
}  // namespace selfsame::decoder
