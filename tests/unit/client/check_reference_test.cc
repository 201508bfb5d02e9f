#include "decoder/client/check_reference.h"

#include <cmath>

#include "decoder/client/check_compare.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace selfsame::client {
namespace {

using ::testing::HasSubstr;

SavedReference MakeReference() {
  SavedReference reference;
  reference.fingerprint = "fp";
  reference.model = "model";
  reference.cases = BuildCases({"one \"quoted\"", "zwei \xc3\xa4\n"}, {.temperature = 0.7f});
  reference.cases[1].min_p = 0.05f;
  reference.cases[1].repetition_penalty = 1.1f;
  reference.cases[1].presence_penalty = -0.0f;
  reference.cases[1].frequency_penalty = 0.3f;
  reference.answers = {MakeAnswer(1), MakeAnswer(2)};
  reference.answers[0].logprobs[2] = std::nextafter(-0.1f, 0.0f);
  reference.answers[0].logprobs[3] = -0.0f;
  reference.answers[1].logprobs[0] = -INFINITY;
  reference.answers[1].finish_reason = FinishReason::kStop;
  reference.answers[1].stop_token_id = 42;
  reference.cases[1].prompt_logprobs = 1;
  for (const int32_t id : reference.answers[0].token_ids) {
    reference.answers[0].top_logprobs.push_back({{id, -0.0f}, {7, std::nextafter(-3.0f, 0.0f)}});
  }
  reference.answers[1].prompt_logprobs = {{-1.5f, {{3, -0.25f}}},
                                          {std::nextafter(-2.0f, 0.0f), {}}};
  reference.ordinary_answers = {MakeAnswer(3), MakeAnswer(4)};
  return reference;
}

TEST(CheckReferenceTest, KeepsEveryBit) {
  const SavedReference saved = MakeReference();
  const auto read = ParseReference("file", SerializeReference(saved));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->fingerprint, saved.fingerprint);
  EXPECT_EQ(read->model, saved.model);
  EXPECT_TRUE(CheckSameCases(*read, saved.cases).ok());
  ASSERT_EQ(read->answers.size(), saved.answers.size());
  for (size_t i = 0; i < saved.answers.size(); ++i) {
    EXPECT_FALSE(FindDifference(saved.answers[i], read->answers[i]).has_value()) << i;
    EXPECT_EQ(read->answers[i].top_logprobs, saved.answers[i].top_logprobs) << i;
    EXPECT_EQ(read->answers[i].prompt_logprobs, saved.answers[i].prompt_logprobs) << i;
  }
  ASSERT_EQ(read->ordinary_answers.size(), saved.ordinary_answers.size());
  EXPECT_EQ(read->ordinary_answers[1].token_ids, saved.ordinary_answers[1].token_ids);
}

TEST(CheckReferenceTest, AFileWithoutOrdinaryAnswersCanBeRead) {
  SavedReference saved = MakeReference();
  saved.ordinary_answers.clear();
  const auto read = ParseReference("file", SerializeReference(saved));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->ordinary_answers.empty());
}

TEST(CheckReferenceTest, AFileOfAnotherKindIsOneClearError) {
  const std::string good = SerializeReference(MakeReference());
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"format\": 3}"),
        std::string("{}"), good.substr(0, good.size() / 2)}) {
    const auto read = ParseReference("some/file", text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("some/file"));
  }
}

TEST(CheckReferenceTest, OtherQuestionsCannotBeCompared) {
  const SavedReference saved = MakeReference();
  std::vector<CheckCase> cases = saved.cases;
  cases[1].seed += 1;
  const absl::Status status = CheckSameCases(saved, cases);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("request 1"));
  cases.pop_back();
  EXPECT_FALSE(CheckSameCases(saved, cases).ok());
}

}  // namespace
}  // namespace selfsame::client
