// The messages of verification.proto; those of inference.proto are in convert_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/limits.h"
#include "decoder/convert.h"

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 0xfeedfacecafebeef;

TEST(OpenSessionTest, CarriesEverything) {
  SessionOpening opening;
  opening.session_id = 3;
  opening.prompt_token_ids = {1, 2};
  opening.committed_token_ids = {3};
  opening.temperature = 0.5f;
  opening.top_k = 4;
  opening.top_p = 0.75f;
  opening.min_p = 0.125f;
  opening.logit_rules = {.repetition_penalty = 1.5f,
                         .presence_penalty = -1.0f,
                         .frequency_penalty = 0.5f,
                         .logit_bias = {{2, -3.0f}},
                         .min_tokens = 4};
  opening.seed = kSeed;
  opening.choice_index = 1;
  opening.max_tokens = 8;
  opening.stop_token_ids = {2, 7};
  opening.expected_fingerprint = "abc";
  opening.top_logprobs = 6;
  opening.prompt_logprobs = 0;
  const v1::OpenSession message = ToProto(opening);
  EXPECT_EQ(message.top_logprobs(), 6);
  EXPECT_TRUE(message.has_prompt_logprobs());
  EXPECT_EQ(message.session_id(), 3u);
  EXPECT_THAT(message.prompt_token_ids(), ElementsAre(1, 2));
  EXPECT_THAT(message.committed_token_ids(), ElementsAre(3));
  EXPECT_EQ(message.sampling().temperature(), 0.5f);
  EXPECT_EQ(message.sampling().top_k(), 4);
  EXPECT_EQ(message.sampling().top_p(), 0.75f);
  EXPECT_EQ(message.sampling().min_p(), 0.125f);
  EXPECT_EQ(message.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(message.sampling().presence_penalty(), -1.0f);
  EXPECT_EQ(message.sampling().frequency_penalty(), 0.5f);
  ASSERT_EQ(message.sampling().logit_bias_size(), 1);
  EXPECT_EQ(message.sampling().logit_bias().at(2), -3.0f);
  EXPECT_EQ(message.stop().min_tokens(), 4);
  EXPECT_EQ(message.sampling().seed(), kSeed);
  EXPECT_EQ(message.choice_index(), 1);
  EXPECT_EQ(message.stop().max_tokens(), 8);
  EXPECT_THAT(message.stop().stop_token_ids(), ElementsAre(2, 7));
  EXPECT_EQ(message.expected_fingerprint(), "abc");
}

TEST(SubmitWindowTest, CarriesEverything) {
  const v1::SubmitWindow message = ToProto(Window{
      .session_id = 3, .epoch = 2, .window_id = 5, .first_position = 17, .candidate_ids = {8, 9}});
  EXPECT_EQ(message.session_id(), 3u);
  EXPECT_EQ(message.epoch(), 2u);
  EXPECT_EQ(message.window_id(), 5u);
  EXPECT_EQ(message.first_position(), 17);
  EXPECT_THAT(message.candidate_ids(), ElementsAre(8, 9));
}

v1::Verdict Rollback() {
  v1::Verdict verdict;
  verdict.set_session_id(3);
  verdict.set_window_id(5);
  verdict.set_outcome(v1::OUTCOME_ROLLBACK);
  verdict.set_epoch(2);
  verdict.set_committed_length(14);
  verdict.set_canonical_token(0);
  verdict.add_logprobs(-1.5f);
  verdict.set_end(v1::END_STOP_TOKEN);
  return verdict;
}

TEST(VerdictTest, RollbackCarriesItsToken) {
  const absl::StatusOr<Verdict> verdict = FromProto(Rollback());
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(verdict->session_id, 3u);
  EXPECT_EQ(verdict->window_id, 5u);
  EXPECT_EQ(verdict->outcome, Outcome::kRollback);
  EXPECT_EQ(verdict->epoch, 2u);
  EXPECT_EQ(verdict->committed_length, 14);
  EXPECT_EQ(verdict->canonical_token, 0);
  EXPECT_THAT(verdict->logprobs, ElementsAre(-1.5f));
  EXPECT_EQ(verdict->end, End::kStopToken);
}

TEST(VerdictTest, AnImpossibleTimeIsLeftOut) {
  v1::Verdict verdict = Rollback();
  EXPECT_FALSE(FromProto(verdict)->verifier_time.has_value());
  verdict.set_verifier_time_us(1500);
  EXPECT_EQ(FromProto(verdict)->verifier_time, std::chrono::microseconds(1500));
  for (const int64_t time_us : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    verdict.set_verifier_time_us(time_us);
    EXPECT_FALSE(FromProto(verdict)->verifier_time.has_value()) << time_us;
  }
}

struct BadVerdict {
  const char* name;
  std::function<void(v1::Verdict&)> spoil;
  const char* says;
};

class MalformedVerdictTest : public testing::TestWithParam<BadVerdict> {};

TEST_P(MalformedVerdictTest, IsAnErrorThatNamesWindowAndField) {
  v1::Verdict message = Rollback();
  GetParam().spoil(message);
  const absl::StatusOr<Verdict> verdict = FromProto(message);
  EXPECT_EQ(verdict.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(verdict.status().message()), HasSubstr("of session 3"));
  EXPECT_THAT(std::string(verdict.status().message()), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedVerdictTest,
    testing::Values(
        BadVerdict{"NoOutcome", [](auto& v) { v.clear_outcome(); }, "outcome 0"},
        BadVerdict{"UnknownOutcome", [](auto& v) { v.set_outcome(static_cast<v1::Outcome>(99)); },
                   "outcome 99"},
        BadVerdict{"UnknownEnd", [](auto& v) { v.set_end(static_cast<v1::End>(99)); }, "end 99"},
        BadVerdict{"NegativeLength", [](auto& v) { v.set_committed_length(-1); },
                   "committed_length"},
        BadVerdict{"RollbackWithoutToken", [](auto& v) { v.clear_canonical_token(); },
                   "canonical_token is missing"},
        BadVerdict{"NegativeToken", [](auto& v) { v.set_canonical_token(-1); },
                   "negative canonical_token"},
        BadVerdict{"CommitWithToken", [](auto& v) { v.set_outcome(v1::OUTCOME_COMMIT); },
                   "canonical_token does not belong here"},
        BadVerdict{"OpeningRollback", [](auto& v) { v.set_window_id(0); },
                   "opening verdict must be a commit"},
        BadVerdict{"OpeningWithoutToken",
                   [](auto& v) {
                     v.set_window_id(0);
                     v.set_outcome(v1::OUTCOME_COMMIT);
                     v.clear_canonical_token();
                   },
                   "canonical_token is missing"},
        BadVerdict{"DiscardedWithEnd",
                   [](auto& v) {
                     v.set_outcome(v1::OUTCOME_DISCARDED);
                     v.clear_canonical_token();
                   },
                   "commits nothing"},
        BadVerdict{"TooManyLogprobs",
                   [](auto& v) { v.mutable_logprobs()->Resize(kMaxWindowSize + 1, 0.0f); },
                   "logprobs"}),
    [](const auto& info) { return info.param.name; });

// An opening verdict with an alternative for its token, and the logprob of a prompt token with one.
v1::Verdict OpeningWithLogprobs() {
  v1::Verdict verdict = Rollback();
  verdict.set_window_id(0);
  verdict.set_outcome(v1::OUTCOME_COMMIT);
  v1::TopLogprobs& top = *verdict.add_top_logprobs();
  top.add_token_ids(7);
  top.add_logprobs(-1.5f);
  v1::PromptLogprobs& prompt = *verdict.mutable_prompt_logprobs();
  prompt.set_first_position(1);
  prompt.add_logprobs(-2.0f);
  v1::TopLogprobs& prompt_top = *prompt.add_top_logprobs();
  prompt_top.add_token_ids(4);
  prompt_top.add_logprobs(-0.5f);
  return verdict;
}

TEST(VerdictTest, AnOpeningCarriesAlternativesAndPromptLogprobs) {
  const auto verdict = FromProto(OpeningWithLogprobs());
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_THAT(verdict->top_logprobs, ElementsAre(TopLogprobs{{7, -1.5f}}));
  EXPECT_THAT(verdict->prompt_logprobs, ElementsAre(PromptLogprob{-2.0f, {{4, -0.5f}}}));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class MalformedLogprobsTest : public testing::TestWithParam<BadVerdict> {};

TEST_P(MalformedLogprobsTest, IsAnErrorThatSaysWhatIsWrong) {
  v1::Verdict message = OpeningWithLogprobs();
  GetParam().spoil(message);
  const absl::StatusOr<Verdict> verdict = FromProto(message);
  EXPECT_EQ(verdict.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(verdict.status().message()), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedLogprobsTest,
    testing::Values(BadVerdict{"AlternativesOfNoToken", [](auto& v) { v.add_top_logprobs(); },
                               "2 top_logprobs for 1 logprobs"},
                    BadVerdict{"AlternativeWithoutLogprob",
                               [](auto& v) { v.mutable_top_logprobs(0)->add_token_ids(1); },
                               "top_logprobs with 2 tokens and 1 logprobs"},
                    BadVerdict{"NegativeAlternative",
                               [](auto& v) { v.mutable_top_logprobs(0)->set_token_ids(0, -1); },
                               "top_logprobs with a negative token or"},
                    BadVerdict{"AlternativeNotANumber",
                               [](auto& v) { v.mutable_top_logprobs(0)->set_logprobs(0, kNan); },
                               "or a logprob that is not a number"},
                    BadVerdict{"TooManyAlternatives",
                               [](auto& v) {
                                 v1::TopLogprobs& top = *v.mutable_top_logprobs(0);
                                 top.mutable_token_ids()->Resize(kMaxTopLogprobs + 1, 0);
                                 top.mutable_logprobs()->Resize(kMaxTopLogprobs + 1, 0.0f);
                               },
                               "top_logprobs with 21 tokens"},
                    BadVerdict{"PromptFromPositionZero",
                               [](auto& v) { v.mutable_prompt_logprobs()->set_first_position(0); },
                               "prompt_logprobs do not belong here"},
                    BadVerdict{"PromptTokenWithoutAlternatives",
                               [](auto& v) { v.mutable_prompt_logprobs()->add_logprobs(-1.0f); },
                               "prompt_logprobs with 2 logprobs and 1 top_logprobs"},
                    BadVerdict{"PromptLogprobNotANumber",
                               [](auto& v) { v.mutable_prompt_logprobs()->set_logprobs(0, kNan); },
                               "prompt_logprobs with a logprob that is not a number"},
                    BadVerdict{
                        "PromptAlternativeWithoutLogprob",
                        [](auto& v) {
                          v.mutable_prompt_logprobs()->mutable_top_logprobs(0)->add_token_ids(1);
                        },
                        "top_logprobs with 2 tokens and 1 logprobs"},
                    BadVerdict{"PromptLogprobsOfAWindow",
                               [](auto& v) {
                                 v.set_window_id(1);
                                 v.clear_canonical_token();
                               },
                               "prompt_logprobs do not belong here"}),
    [](const auto& info) { return info.param.name; });

TEST(VerdictTest, EveryEndIsKnown) {
  v1::Verdict message = Rollback();
  message.set_end(v1::END_UNSPECIFIED);
  EXPECT_EQ(FromProto(message)->end, End::kNone);
  message.set_end(v1::END_MAX_TOKENS);
  EXPECT_EQ(FromProto(message)->end, End::kMaxTokens);
  message.set_end(v1::END_CONTEXT_LIMIT);
  EXPECT_EQ(FromProto(message)->end, End::kContextLimit);
}

TEST(VerifierInfoTest, NeedsAFingerprintAndAWindow) {
  v1::GetVerifierInfoResponse response;
  response.set_max_window_size(64);
  EXPECT_EQ(FromProto(response).status().code(), absl::StatusCode::kFailedPrecondition);
  response.set_fingerprint("abc");
  response.set_context_limit(512);
  response.set_vocab_size(1000);
  const absl::StatusOr<VerifierInfo> info = FromProto(response);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->fingerprint, "abc");
  EXPECT_EQ(info->context_limit, 512);
  EXPECT_EQ(info->vocab_size, 1000);
  EXPECT_EQ(info->max_window_size, 64);
  response.set_max_window_size(0);
  EXPECT_FALSE(FromProto(response).ok());
}

TEST(SessionErrorTest, IsNeverOk) {
  v1::SessionError error;
  error.set_message("gone");
  EXPECT_EQ(FromProto(error).code(), absl::StatusCode::kInternal);
  error.set_code(14);
  EXPECT_EQ(FromProto(error), absl::UnavailableError("gone"));
  error.set_code(1234);
  EXPECT_EQ(FromProto(error).code(), absl::StatusCode::kInternal);
}

TEST(SessionErrorTest, KeepsTheRetryHint) {
  v1::SessionError error;
  error.set_code(8);
  EXPECT_EQ(RetryAfterMsOf(FromProto(error)), std::nullopt);
  error.set_retry_after_ms(250);
  EXPECT_EQ(RetryAfterMsOf(FromProto(error)), 250);
  error.set_retry_after_ms(-1);
  EXPECT_EQ(RetryAfterMsOf(FromProto(error)), std::nullopt);
}

}  // namespace
}  // namespace selfsame::decoder
