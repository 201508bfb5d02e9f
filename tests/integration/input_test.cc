// Bad input over the wire: each is one clear error, and the server lives.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

using ::testing::HasSubstr;

class InputTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new NearTieModel;
    auto cluster = Cluster::Start({.model_dir = model_->path(),
                                   .decoder_flags = {},
                                   .verifier_flags = {},
                                   .verifier_count = 0,
                                   .other_verifiers = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = cluster->release();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    delete model_;
  }

  // After every test the same server still answers.
  void TearDown() override {
    v1::GenerateRequest request;
    request.set_prompt("hello");
    request.mutable_stop()->set_max_tokens(2);
    const GenerateResult result = client().Generate(request);
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.violation, "");
  }

  static TestClient& client() { return cluster_->client(); }

  static NearTieModel* model_;
  static Cluster* cluster_;
};

NearTieModel* InputTest::model_ = nullptr;
Cluster* InputTest::cluster_ = nullptr;

void ExpectFieldError(const absl::Status& status, const std::string& field,
                      const std::string& says) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(FieldOf(status), field) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(says));
}

TEST_F(InputTest, BadFieldsAreNamedInMessageAndDetails) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    const char* field;
    const char* says;
    std::function<void(v1::GenerateRequest&)> spoil;
  };
  const Case cases[] = {
      {"input", "must be set", [](auto& r) { r.clear_input(); }},
      {"prompt", "empty", [](auto& r) { r.set_prompt(std::string()); }},
      {"prompt", "the limit is 1023", [](auto& r) { r.set_prompt(std::string(20000, '7')); }},
      {"prompt", "4194304", [](auto& r) { r.set_prompt(std::string(kMaxPromptBytes + 1, 'a')); }},
      {"prompt_token_ids", "at least one", [](auto& r) { r.mutable_prompt_token_ids(); }},
      {"prompt_token_ids[0]", "0 to 319",
       [](auto& r) { r.mutable_prompt_token_ids()->add_ids(320); }},
      {"prompt_token_ids[0]", "0 to 319",
       [](auto& r) { r.mutable_prompt_token_ids()->add_ids(-1); }},
      {"chat.messages", "empty", [](auto& r) { r.mutable_chat(); }},
      {"chat.messages[0].role", "system, user or assistant",
       [](auto& r) { r.mutable_chat()->add_messages()->set_role(std::string("robot")); }},
      {"sampling.temperature", "100", [](auto& r) { r.mutable_sampling()->set_temperature(-1); }},
      {"sampling.temperature", "100", [](auto& r) { r.mutable_sampling()->set_temperature(kNan); }},
      {"sampling.top_p", "(0, 1]", [](auto& r) { r.mutable_sampling()->set_top_p(1.01f); }},
      {"sampling.top_p", "(0, 1]", [](auto& r) { r.mutable_sampling()->set_top_p(kNan); }},
      {"sampling.top_k", "not -1", [](auto& r) { r.mutable_sampling()->set_top_k(-1); }},
      {"sampling.min_p", "0 (off) and 1", [](auto& r) { r.mutable_sampling()->set_min_p(1.5f); }},
      {"sampling.repetition_penalty", "above 0",
       [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0.0f); }},
      {"sampling.presence_penalty", "-2 and 2",
       [](auto& r) { r.mutable_sampling()->set_presence_penalty(-2.1f); }},
      {"sampling.frequency_penalty", "-2 and 2",
       [](auto& r) { r.mutable_sampling()->set_frequency_penalty(kNan); }},
      {"sampling.logit_bias", "0 to 319",
       [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[-1] = 0.0f; }},
      {"sampling.logit_bias[3]", "-100 and 100",
       [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[3] = 100.5f; }},
      {"sampling.logit_bias", "the limit is 1024",
       [](auto& r) {
         for (int i = 0; i <= kMaxLogitBiases; ++i) {
           (*r.mutable_sampling()->mutable_logit_bias())[i] = 0.0f;
         }
       }},
      {"stop.min_tokens", "not -1", [](auto& r) { r.mutable_stop()->set_min_tokens(-1); }},
      {"stop.min_tokens", "which is 4",
       [](auto& r) {
         r.mutable_stop()->set_max_tokens(4);
         r.mutable_stop()->set_min_tokens(5);
       }},
      {"stop.min_tokens", "leaves room for",
       [](auto& r) { r.mutable_stop()->set_min_tokens(1023); }},
      {"stop.max_tokens", "at least 1", [](auto& r) { r.mutable_stop()->set_max_tokens(0); }},
      {"stop.max_tokens", "leaves room for",
       [](auto& r) { r.mutable_stop()->set_max_tokens(1 << 30); }},
      {"stop.stop[0]", "empty", [](auto& r) { r.mutable_stop()->add_stop(std::string()); }},
      {"stop.stop_token_ids[0]", "0 to 319",
       [](auto& r) { r.mutable_stop()->add_stop_token_ids(320); }},
      {"n", "must be 1 to 64", [](auto& r) { r.set_n(0); }},
      {"n", "must be 1 to 64", [](auto& r) { r.set_n(65); }},
      {"top_logprobs", "needs logprobs", [](auto& r) { r.set_top_logprobs(1); }},
      {"top_logprobs", "must be 0 to 20", [](auto& r) { r.set_top_logprobs(21); }},
      {"top_logprobs", "must be 0 to 20", [](auto& r) { r.set_top_logprobs(-1); }},
      {"prompt_logprobs", "must be 0 to 20", [](auto& r) { r.set_prompt_logprobs(21); }},
      {"prompt_logprobs", "must be 0 to 20", [](auto& r) { r.set_prompt_logprobs(-1); }},
      {"expected_fingerprint", "is_deterministic",
       [](auto& r) { r.set_expected_fingerprint(std::string("abc")); }},
  };
  for (const Case& bad : cases) {
    v1::GenerateRequest request;
    request.set_prompt("hello");
    bad.spoil(request);
    const GenerateResult result = client().Generate(request);
    ExpectFieldError(result.status, bad.field, bad.says);
    EXPECT_FALSE(result.started.has_value());
  }
}

TEST_F(InputTest, TextThatIsNotUtf8NamesItsField) {
  v1::GenerateRequest request;
  request.set_prompt("bad \xff byte");
  ExpectFieldError(client().Generate(request).status, "prompt", "UTF-8");
  request.set_prompt("good");
  request.mutable_stop()->add_stop("\xc3");
  ExpectFieldError(client().Generate(request).status, "stop.stop", "UTF-8");
  v1::TokenizeRequest tokenize;
  tokenize.set_text("\xed\xa0\x80");
  ExpectFieldError(client().Tokenize(tokenize).status(), "text", "UTF-8");
}

TEST_F(InputTest, BytesThatAreNoRequestAreRefused) {
  ExpectFieldError(client().GenerateRaw("\x0a\x7f"), "request", "selfsame.v1.GenerateRequest");
  ExpectFieldError(client().GenerateRaw(std::string(100, '\xff')), "request", "not a valid");
}

TEST_F(InputTest, MessagesBeyondTheLimitAreRefused) {
  const std::string bytes(kMaxGrpcMessageBytes + 1, 'a');
  EXPECT_EQ(client().GenerateRaw(bytes).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(InputTest, ReflectionListsTheService) {
  const auto services = client().ReflectServices();
  ASSERT_TRUE(services.ok()) << services.status();
  EXPECT_THAT(*services, HasSubstr("selfsame.v1.Inference"));
  EXPECT_THAT(*services, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(InputTest, RequestIdIsEchoedMadeOrRefused) {
  v1::GenerateRequest request;
  request.set_prompt("hello");
  request.mutable_stop()->set_max_tokens(1);
  CallOptions options;
  options.request_id = "trace-17";
  const GenerateResult named = client().Generate(request, options);
  ASSERT_TRUE(named.status.ok()) << named.status;
  EXPECT_EQ(named.request_id, "trace-17");
  EXPECT_EQ(named.started->request_id(), "trace-17");
  const GenerateResult unnamed = client().Generate(request);
  EXPECT_EQ(unnamed.request_id.size(), 32u);
  EXPECT_EQ(unnamed.started->request_id(), unnamed.request_id);
  options.request_id = std::string(kMaxRequestIdBytes + 1, 'x');
  ExpectFieldError(client().Generate(request, options).status, "x-request-id", "128");
}

TEST_F(InputTest, DefaultsAreResolvedAndTold) {
  v1::GenerateRequest request;
  request.mutable_prompt_token_ids()->add_ids(5);
  request.mutable_stop()->add_stop_token_ids(7);
  CallOptions options;
  options.on_chunk = [](int) { return false; };
  const GenerateResult result = client().Generate(request, options);
  ASSERT_TRUE(result.started.has_value());
  EXPECT_EQ(result.started->prompt_tokens(), 1);
  EXPECT_EQ(result.started->params().temperature(), 1.0f);
  EXPECT_EQ(result.started->params().top_k(), 0);
  EXPECT_EQ(result.started->params().top_p(), 1.0f);
  EXPECT_EQ(result.started->params().min_p(), 0.0f);
  EXPECT_EQ(result.started->params().repetition_penalty(), 1.0f);
  EXPECT_EQ(result.started->params().presence_penalty(), 0.0f);
  EXPECT_EQ(result.started->params().frequency_penalty(), 0.0f);
  EXPECT_EQ(result.started->params().max_tokens(), NearTieModel::kContextLimit - 1);
  EXPECT_EQ(result.started->params().min_tokens(), 0);
  EXPECT_EQ(result.started->fingerprint(), "");
}

TEST_F(InputTest, DeterministicRequestWithoutVerifiersFailsAndDoesNotFallBack) {
  const GenerateResult result = client().Generate(MakeRequests(1, 4)[0]);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
  EXPECT_TRUE(result.token_ids.empty());
}

TEST_F(InputTest, ChatNeedsAModelWithATemplate) {
  v1::GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hello");
  const GenerateResult result = client().Generate(request);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
  EXPECT_THAT(std::string(result.status.message()), HasSubstr("template"));
}

TEST_F(InputTest, DeadlineEndsTheRequest) {
  auto request = MakeOrdinary(MakeRequests(1, 800))[0];
  CallOptions options;
  options.timeout = std::chrono::milliseconds(1);
  EXPECT_EQ(client().Generate(request, options).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(client().WaitUntilIdle());
}

TEST_F(InputTest, TextSurvivesTokenizeAndDetokenize) {
  v1::TokenizeRequest request;
  request.set_text("In the beginning \xe2\x82\xac was 1+1");
  const auto tokens = client().Tokenize(request);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens->token_ids();
  const auto text = client().Detokenize(back);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->text(), request.text());
}

TEST_F(InputTest, TokenizeAndDetokenizeNameTheirFields) {
  ExpectFieldError(client().Tokenize(v1::TokenizeRequest()).status(), "input", "must be set");
  v1::DetokenizeRequest request;
  request.add_token_ids(1 << 20);
  ExpectFieldError(client().Detokenize(request).status(), "token_ids[0]", "outside");
}

TEST_F(InputTest, ServerInfoTellsTheLimits) {
  const auto info = client().GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->context_limit(), NearTieModel::kContextLimit);
  EXPECT_EQ(info->vocab_size(), NearTieModel::kVocabSize);
  EXPECT_NE(info->version(), "");
  EXPECT_NE(info->arithmetic(), "");
  EXPECT_EQ(info->verifiers_size(), 0);
}

TEST_F(InputTest, HealthSpeaksForBothKindsOfRequest) {
  EXPECT_EQ(*client().IsServing(""), true);
  EXPECT_EQ(*client().IsServing(kHealthName), true);
  EXPECT_EQ(*client().IsServing(kDeterministicHealthName), false);
  EXPECT_EQ(client().IsServing("nobody").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace selfsame::testing
