#include "decoder/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/limits.h"

namespace selfsame::decoder {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr RequestLimits kLimits = {
    .context_limit = 100, .vocab_size = 1000, .tokenizer_vocab_size = 900};

v1::GenerateRequest ValidRequest() {
  v1::GenerateRequest request;
  request.set_prompt("once upon a time");
  return request;
}

struct BadRequest {
  const char* name;
  std::function<void(v1::GenerateRequest&)> spoil;
  const char* field;
  const char* says;  // the limit, or what is wrong
};

class ValidateGenerateTest : public testing::TestWithParam<BadRequest> {};

TEST_P(ValidateGenerateTest, NamesFieldAndLimit) {
  v1::GenerateRequest request = ValidRequest();
  GetParam().spoil(request);
  const absl::Status status = ValidateGenerate(request, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(status), GetParam().field);
  EXPECT_THAT(std::string(status.message()), StartsWith(std::string(GetParam().field) + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void AddTokens(v1::GenerateRequest& request, int count) {
  for (int i = 0; i < count; ++i) request.mutable_prompt_token_ids()->add_ids(1);
}

INSTANTIATE_TEST_SUITE_P(
    Input, ValidateGenerateTest,
    testing::Values(
        BadRequest{"NoInput", [](auto& r) { r.clear_input(); }, "input", "must be set"},
        BadRequest{"EmptyPrompt", [](auto& r) { r.set_prompt(""); }, "prompt", "empty"},
        BadRequest{"LongPrompt",
                   [](auto& r) { r.set_prompt(std::string(kMaxPromptBytes + 1, 'a')); }, "prompt",
                   "4194304"},
        BadRequest{"NoTokens", [](auto& r) { r.mutable_prompt_token_ids(); }, "prompt_token_ids",
                   "at least one token"},
        BadRequest{"TooManyTokens", [](auto& r) { AddTokens(r, 100); }, "prompt_token_ids",
                   "the limit is 99"},
        BadRequest{"NegativeToken",
                   [](auto& r) {
                     AddTokens(r, 2);
                     r.mutable_prompt_token_ids()->add_ids(-1);
                   },
                   "prompt_token_ids[2]", "token id -1 is outside the vocabulary, 0 to 999"},
        BadRequest{"TokenPastVocabulary",
                   [](auto& r) { r.mutable_prompt_token_ids()->add_ids(1000); },
                   "prompt_token_ids[0]", "0 to 999"},
        BadRequest{"NoMessages", [](auto& r) { r.mutable_chat(); }, "chat.messages", "empty"},
        BadRequest{"TooManyMessages",
                   [](auto& r) {
                     for (int i = 0; i <= kMaxChatMessages; ++i) {
                       r.mutable_chat()->add_messages()->set_role("user");
                     }
                   },
                   "chat.messages", "the limit is 1024"},
        BadRequest{"UnknownRole",
                   [](auto& r) {
                     r.mutable_chat()->add_messages()->set_role("user");
                     r.mutable_chat()->add_messages()->set_role("tool");
                   },
                   "chat.messages[1].role", "system, user or assistant"},
        BadRequest{"NoRole", [](auto& r) { r.mutable_chat()->add_messages(); },
                   "chat.messages[0].role", "system, user or assistant"},
        BadRequest{"LongChat",
                   [](auto& r) {
                     auto* message = r.mutable_chat()->add_messages();
                     message->set_role("user");
                     message->set_content(std::string(kMaxPromptBytes + 1, 'a'));
                   },
                   "chat.messages", "4194304"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Sampling, ValidateGenerateTest,
    testing::Values(
        BadRequest{"NegativeTemperature",
                   [](auto& r) { r.mutable_sampling()->set_temperature(-0.5f); },
                   "sampling.temperature", "not -0.5"},
        BadRequest{"NanTemperature", [](auto& r) { r.mutable_sampling()->set_temperature(kNan); },
                   "sampling.temperature", "and 100"},
        BadRequest{"InfiniteTemperature",
                   [](auto& r) { r.mutable_sampling()->set_temperature(kInfinity); },
                   "sampling.temperature", "and 100"},
        BadRequest{"HotTemperature", [](auto& r) { r.mutable_sampling()->set_temperature(100.5f); },
                   "sampling.temperature", "and 100"},
        BadRequest{"VanishingTemperature",
                   [](auto& r) { r.mutable_sampling()->set_temperature(1e-30f); },
                   "sampling.temperature", "0.0001"},
        BadRequest{"NegativeTopK", [](auto& r) { r.mutable_sampling()->set_top_k(-1); },
                   "sampling.top_k", "not -1"},
        BadRequest{"ZeroTopP", [](auto& r) { r.mutable_sampling()->set_top_p(0.0f); },
                   "sampling.top_p", "(0, 1]"},
        BadRequest{"LargeTopP", [](auto& r) { r.mutable_sampling()->set_top_p(1.5f); },
                   "sampling.top_p", "(0, 1]"},
        BadRequest{"NegativeTopP", [](auto& r) { r.mutable_sampling()->set_top_p(-0.1f); },
                   "sampling.top_p", "(0, 1]"},
        BadRequest{"NanTopP", [](auto& r) { r.mutable_sampling()->set_top_p(kNan); },
                   "sampling.top_p", "(0, 1]"},
        BadRequest{"NegativeMinP", [](auto& r) { r.mutable_sampling()->set_min_p(-0.1f); },
                   "sampling.min_p", "and 1, not -0.1"},
        BadRequest{"NanMinP", [](auto& r) { r.mutable_sampling()->set_min_p(kNan); },
                   "sampling.min_p", "and 1"},
        BadRequest{"NoRepetition",
                   [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0.0f); },
                   "sampling.repetition_penalty", "above 0"},
        BadRequest{"LargePresence",
                   [](auto& r) { r.mutable_sampling()->set_presence_penalty(2.5f); },
                   "sampling.presence_penalty", "-2 and 2, not 2.5"},
        BadRequest{"LowFrequency",
                   [](auto& r) { r.mutable_sampling()->set_frequency_penalty(-2.5f); },
                   "sampling.frequency_penalty", "-2 and 2, not -2.5"},
        BadRequest{"BiasPastVocabulary",
                   [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[1000] = 1.0f; },
                   "sampling.logit_bias", "0 to 999"},
        BadRequest{"InfiniteBias",
                   [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[7] = kInfinity; },
                   "sampling.logit_bias[7]", "-100 and 100"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Stop, ValidateGenerateTest,
    testing::Values(
        BadRequest{"NoOutput", [](auto& r) { r.mutable_stop()->set_max_tokens(0); },
                   "stop.max_tokens", "at least 1, not 0"},
        BadRequest{"NegativeOutput", [](auto& r) { r.mutable_stop()->set_max_tokens(-3); },
                   "stop.max_tokens", "at least 1, not -3"},
        BadRequest{"TooManyStopStrings",
                   [](auto& r) {
                     for (int i = 0; i <= kMaxStopStrings; ++i)
                       r.mutable_stop()->add_stop(std::string("x"));
                   },
                   "stop.stop", "the limit is 16"},
        BadRequest{"EmptyStopString",
                   [](auto& r) {
                     r.mutable_stop()->add_stop(std::string("x"));
                     r.mutable_stop()->add_stop(std::string());
                   },
                   "stop.stop[1]", "empty"},
        BadRequest{
            "LongStopString",
            [](auto& r) { r.mutable_stop()->add_stop(std::string(kMaxStopStringBytes + 1, 'x')); },
            "stop.stop[0]", "the limit is 256"},
        BadRequest{"StopTokenPastVocabulary",
                   [](auto& r) { r.mutable_stop()->add_stop_token_ids(1000); },
                   "stop.stop_token_ids[0]", "0 to 999"},
        BadRequest{"NegativeStopToken", [](auto& r) { r.mutable_stop()->add_stop_token_ids(-1); },
                   "stop.stop_token_ids[0]", "0 to 999"},
        BadRequest{"TooManyStopTokens",
                   [](auto& r) {
                     for (int i = 0; i <= kMaxStopTokenIds; ++i) {
                       r.mutable_stop()->add_stop_token_ids(1);
                     }
                   },
                   "stop.stop_token_ids", "the limit is 64"},
        BadRequest{"NegativeMinTokens", [](auto& r) { r.mutable_stop()->set_min_tokens(-1); },
                   "stop.min_tokens", "not -1"},
        BadRequest{"MinTokensAboveMaxTokens",
                   [](auto& r) {
                     r.mutable_stop()->set_max_tokens(5);
                     r.mutable_stop()->set_min_tokens(6);
                   },
                   "stop.min_tokens", "max_tokens, which is 5"},
        BadRequest{"PriorityTooLow", [](auto& r) { r.set_priority(-1001); }, "priority",
                   "from -1000 to 1000"},
        BadRequest{"PriorityTooHigh", [](auto& r) { r.set_priority(1001); }, "priority",
                   "from -1000 to 1000"},
        BadRequest{"FingerprintOfAnOrdinaryRequest",
                   [](auto& r) { r.set_expected_fingerprint("abc"); }, "expected_fingerprint",
                   "needs is_deterministic"},
        BadRequest{"EmptyFingerprint",
                   [](auto& r) {
                     r.set_is_deterministic(true);
                     r.set_expected_fingerprint("");
                   },
                   "expected_fingerprint", "1 to 256"},
        BadRequest{"CandidatesOfAnOrdinaryRequest", [](auto& r) { r.set_stream_candidates(true); },
                   "stream_candidates", "needs is_deterministic"},
        BadRequest{"ResumedTokenPastVocabulary",
                   [](auto& r) {
                     r.add_resume_token_ids(999);
                     r.add_resume_token_ids(1000);
                   },
                   "resume_token_ids[1]", "0 to 999"},
        BadRequest{"NegativeResumedToken", [](auto& r) { r.add_resume_token_ids(-1); },
                   "resume_token_ids[0]", "0 to 999"},
        BadRequest{"TooManyResumedTokens",
                   [](auto& r) { r.mutable_resume_token_ids()->Resize(100, 1); },
                   "resume_token_ids", "the limit is 99"}),
    [](const auto& info) { return info.param.name; });

TEST(ValidateGenerateTest, AcceptsEveryLimit) {
  v1::GenerateRequest request = ValidRequest();
  request.set_is_deterministic(true);
  request.set_expected_fingerprint("abc");
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_sampling()->set_top_k(0);
  request.mutable_sampling()->set_top_p(1.0f);
  request.mutable_stop()->set_max_tokens(1);
  for (int i = 0; i < kMaxStopStrings; ++i) {
    request.mutable_stop()->add_stop(std::string(kMaxStopStringBytes, 'x'));
  }
  for (int i = 0; i < kMaxStopTokenIds; ++i) request.mutable_stop()->add_stop_token_ids(999);
  request.set_stream_candidates(true);
  request.mutable_resume_token_ids()->Resize(99, 999);
  EXPECT_EQ(ValidateGenerate(request, kLimits), absl::OkStatus());
  request.mutable_sampling()->set_temperature(kMaxTemperature);
  request.mutable_sampling()->set_top_p(1e-6f);
  AddTokens(request, 99);
  request.mutable_prompt_token_ids()->set_ids(0, 999);
  EXPECT_EQ(ValidateGenerate(request, kLimits), absl::OkStatus());
}

TEST(ValidateLengthsTest, PromptMayNotTokeniseToNothing) {
  const absl::Status status = ValidateLengths(0, ValidRequest(), kLimits);
  EXPECT_EQ(status.message(), "prompt: must have at least one token");
}

TEST(ValidateLengthsTest, PromptLeavesRoomForAToken) {
  EXPECT_TRUE(ValidateLengths(99, ValidRequest(), kLimits).ok());
  const absl::Status status = ValidateLengths(100, ValidRequest(), kLimits);
  EXPECT_EQ(FieldOf(status), "prompt");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is 99"));
}

TEST(ValidateLengthsTest, MaxTokensFitsBehindThePrompt) {
  v1::GenerateRequest request = ValidRequest();
  request.mutable_stop()->set_max_tokens(60);
  EXPECT_TRUE(ValidateLengths(40, request, kLimits).ok());
  const absl::Status status = ValidateLengths(41, request, kLimits);
  EXPECT_EQ(FieldOf(status), "stop.max_tokens");
  EXPECT_THAT(std::string(status.message()), HasSubstr("leaves room for 59"));
}

TEST(ValidateLengthsTest, NamesTheInputThatWasSet) {
  v1::GenerateRequest request;
  request.mutable_chat();
  EXPECT_EQ(FieldOf(ValidateLengths(100, request, kLimits)), "chat");
}

TEST(ValidateResumeTest, ResumedTokensAreFewerThanMaxTokens) {
  v1::GenerateRequest request = ValidRequest();
  request.mutable_resume_token_ids()->Resize(7, 1);
  EXPECT_TRUE(ValidateResume(request, 0.0f, 8).ok());
  const absl::Status status = ValidateResume(request, 0.0f, 7);
  EXPECT_EQ(FieldOf(status), "resume_token_ids");
  EXPECT_THAT(std::string(status.message()), HasSubstr("fewer than max_tokens, 7"));
}

TEST(ValidateResumeTest, ASampledAnswerNeedsItsSeed) {
  v1::GenerateRequest request = ValidRequest();
  EXPECT_TRUE(ValidateResume(request, 1.0f, 8).ok()) << "nothing to resume";
  request.add_resume_token_ids(1);
  const absl::Status status = ValidateResume(request, 1.0f, 8);
  EXPECT_EQ(FieldOf(status), "resume_token_ids");
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs sampling.seed"));
  request.mutable_sampling()->set_seed(0);
  EXPECT_TRUE(ValidateResume(request, 1.0f, 8).ok());
}

TEST(ValidateGenerateTest, ChoicesAreFew) {
  v1::GenerateRequest request = ValidRequest();
  for (const int n : {1, kMaxChoices}) {
    request.set_n(n);
    EXPECT_TRUE(ValidateGenerate(request, kLimits).ok()) << n;
  }
  for (const int n : {-1, 0, kMaxChoices + 1}) {
    request.set_n(n);
    const absl::Status status = ValidateGenerate(request, kLimits);
    EXPECT_EQ(FieldOf(status), "n") << n;
    EXPECT_THAT(std::string(status.message()), HasSubstr("must be 1 to 64")) << n;
  }
  request.add_resume_token_ids(1);
  request.set_n(1);
  EXPECT_TRUE(ValidateGenerate(request, kLimits).ok());
  request.set_n(2);
  EXPECT_EQ(FieldOf(ValidateGenerate(request, kLimits)), "n");
}

TEST(ValidateGenerateTest, AlternativesAreFewAndNeedLogprobs) {
  v1::GenerateRequest request = ValidRequest();
  request.set_top_logprobs(1);
  EXPECT_EQ(FieldOf(ValidateGenerate(request, kLimits)), "top_logprobs");
  request.set_logprobs(true);
  for (const int count : {0, 1, kMaxTopLogprobs}) {
    request.set_top_logprobs(count);
    request.set_prompt_logprobs(count);
    EXPECT_TRUE(ValidateGenerate(request, kLimits).ok()) << count;
  }
  for (const int count : {-1, kMaxTopLogprobs + 1}) {
    request.set_top_logprobs(count);
    request.clear_prompt_logprobs();
    const absl::Status status = ValidateGenerate(request, kLimits);
    EXPECT_EQ(FieldOf(status), "top_logprobs") << count;
    EXPECT_THAT(std::string(status.message()), HasSubstr("must be 0 to 20")) << count;
    request.set_top_logprobs(0);
    request.set_prompt_logprobs(count);
    EXPECT_EQ(FieldOf(ValidateGenerate(request, kLimits)), "prompt_logprobs") << count;
  }
}

TEST(ValidateLengthsTest, PromptLogprobsFitIntoAMessage) {
  const RequestLimits limits = {.context_limit = 1 << 22, .vocab_size = 1000};
  v1::GenerateRequest request = ValidRequest();
  request.set_prompt_logprobs(7);
  EXPECT_TRUE(ValidateLengths(kMaxPromptLogprobs / 8, request, limits).ok());
  const absl::Status status = ValidateLengths(kMaxPromptLogprobs / 8 + 1, request, limits);
  EXPECT_EQ(FieldOf(status), "prompt_logprobs");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is 1048576"));
  request.clear_prompt_logprobs();
  EXPECT_TRUE(ValidateLengths(kMaxPromptLogprobs, request, limits).ok());
}

TEST(ValidateTokenizeTest, NeedsAnInput) {
  v1::TokenizeRequest request;
  EXPECT_EQ(FieldOf(ValidateTokenize(request)), "input");
  request.mutable_chat();
  EXPECT_EQ(FieldOf(ValidateTokenize(request)), "chat.messages");
  request.set_text("");
  EXPECT_TRUE(ValidateTokenize(request).ok());
}

TEST(ValidateDetokenizeTest, IdsNeedAText) {
  v1::DetokenizeRequest request;
  request.add_token_ids(899);
  EXPECT_TRUE(ValidateDetokenize(request, kLimits).ok());
  request.add_token_ids(900);
  EXPECT_EQ(FieldOf(ValidateDetokenize(request, kLimits)), "token_ids[1]");
}

TEST(ValidateDetokenizeTest, HasALimit) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Resize(kMaxDetokenizeTokens + 1, 0);
  EXPECT_EQ(FieldOf(ValidateDetokenize(request, kLimits)), "token_ids");
}

TEST(ValidateRequestIdTest, IsShortPrintableAscii) {
  EXPECT_TRUE(ValidateRequestId("abc-123_~!").ok());
  EXPECT_TRUE(ValidateRequestId(std::string(kMaxRequestIdBytes, 'x')).ok());
  for (const std::string& bad : {std::string(), std::string(kMaxRequestIdBytes + 1, 'x'),
                                 std::string("a b"), std::string("a\n"), std::string("\xc3\xa9")}) {
    EXPECT_EQ(FieldOf(ValidateRequestId(bad)), "x-request-id") << bad;
  }
}

// Writes messages whose strings protobuf would refuse to parse.
std::string Serialized(const google::protobuf::Message& message) {
  return message.SerializePartialAsString();
}

TEST(DescribeParseFailureTest, NamesTheStringThatIsNotUtf8) {
  v1::GenerateRequest request = ValidRequest();
  request.set_prompt("bad \xff byte");
  EXPECT_EQ(DescribeParseFailure(*v1::GenerateRequest::descriptor(), Serialized(request)).message(),
            "prompt: must be valid UTF-8");
  request = ValidRequest();
  request.mutable_stop()->add_stop(std::string("fine"));
  request.mutable_stop()->add_stop("\xc3");
  EXPECT_EQ(FieldOf(DescribeParseFailure(*v1::GenerateRequest::descriptor(), Serialized(request))),
            "stop.stop");
  request = ValidRequest();
  request.mutable_chat()->add_messages()->set_content("\xed\xa0\x80");
  EXPECT_EQ(FieldOf(DescribeParseFailure(*v1::GenerateRequest::descriptor(), Serialized(request))),
            "chat.messages.content");
}

TEST(DescribeParseFailureTest, OtherDamageIsAMalformedRequest) {
  EXPECT_EQ(DescribeParseFailure(*v1::GenerateRequest::descriptor(), "\x0a\x7f").message(),
            "request: is not a valid selfsame.v1.GenerateRequest");
}

}  // namespace
}  // namespace selfsame::decoder
