// The answer is that of a plain canonical loop, however windows are cut and passes are packed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/model/model.h"
#include "tests/integration/canonical_answer.h"
#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

constexpr int kRequests = 8;
constexpr int kMaxTokens = kTokenDivisor == 1 ? 160 : 80;
constexpr int kContextLimit = 512;

Answer RunLoop(Model& model, TestClient& client, const v1::GenerateRequest& request) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text(request.prompt());
  const auto prompt = client.Tokenize(tokenize);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return CanonicalAnswer(model, {prompt->token_ids().begin(), prompt->token_ids().end()}, request);
}

// By request; computed once.
const std::vector<Answer>& CanonicalAnswers(TestClient& client,
                                            const std::vector<v1::GenerateRequest>& requests) {
  static auto* answers = new std::vector<Answer>;
  if (!answers->empty()) return *answers;
  const auto model = LoadCanonicalModel(kContextLimit, 2);
  for (const v1::GenerateRequest& request : requests) {
    answers->push_back(RunLoop(*model, client, request));
  }
  return *answers;
}

void ExpectIsAnswer(const GenerateResult& result, const Answer& answer, int index) {
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.token_ids, answer.token_ids) << "request " << index;
  std::vector<uint32_t> bits;
  for (const float logprob : answer.logprobs) bits.push_back(std::bit_cast<uint32_t>(logprob));
  EXPECT_EQ(result.logprob_bits, bits) << "request " << index;
}

struct Shape {
  int window_size;
  int verify_batch_size;
  int max_inflight_windows;
};

class AnswerTest : public ::testing::TestWithParam<Shape> {};

// Each shape is a restart of both services too.
TEST_P(AnswerTest, EqualsThePlainCanonicalLoop) {
  const Shape shape = GetParam();
  const std::string window_flag = absl::StrCat("--window_size=", shape.window_size);
  const std::string context_flag = absl::StrCat("--context_limit=", kContextLimit);
  auto cluster = Cluster::Start(
      {.model_dir = TrainedModelDir(),
       .decoder_flags = {window_flag, context_flag,
                         absl::StrCat("--max_inflight_windows=", shape.max_inflight_windows)},
       .verifier_flags = {window_flag, context_flag,
                          absl::StrCat("--verify_batch_size=", shape.verify_batch_size)},
       .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  TestClient& client = (*cluster)->client();
  const auto requests = MakeVerseRequests(kRequests, kMaxTokens);
  const auto& answers = CanonicalAnswers(client, requests);
  // Few at a time: it is then that the fast path differs most, and that windows are cut short.
  const auto results = ServeAll(client, requests, ArrivalOrder(kRequests, 3), 2);
  int rollbacks = 0;
  for (int i = 0; i < kRequests; ++i) {
    ExpectIsAnswer(results[i], answers[i], i);
    ASSERT_TRUE(results[i].complete.has_value());
    rollbacks += results[i].complete->rollbacks();
  }
  RecordProperty("rollbacks", rollbacks);
  EXPECT_GT(rollbacks, 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AnswerTest,
                         ::testing::Values(Shape{1, 1, 4}, Shape{7, 4, 1}, Shape{16, 8, 2},
                                           Shape{64, 8, 4}, Shape{64, 1, 8}),
                         [](const auto& info) {
                           return absl::StrCat("Window", info.param.window_size, "Batch",
                                               info.param.verify_batch_size, "Inflight",
                                               info.param.max_inflight_windows);
                         });

// Without the rules the answers are others: they do have an effect, and on the answer alone.
TEST(LogitRulesTest, ChangeTheAnswerAndAreDeterministic) {
  auto cluster = Cluster::Start({.model_dir = TrainedModelDir(),
                                 .decoder_flags = {},
                                 .verifier_flags = {},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  TestClient& client = (*cluster)->client();
  int with_rules = 0;
  int changed = 0;
  for (const v1::GenerateRequest& request : MakeVerseRequests(kRequests, 60)) {
    if (request.stop().min_tokens() == 0) continue;
    ++with_rules;
    const GenerateResult first = client.Generate(request);
    ASSERT_TRUE(first.status.ok()) << first.status;
    EXPECT_TRUE(IsSameAnswer(client.Generate(request), first));
    EXPECT_GE(first.token_ids.size(), static_cast<size_t>(request.stop().min_tokens()));
    v1::GenerateRequest plain = request;
    plain.mutable_sampling()->clear_min_p();
    plain.mutable_sampling()->clear_repetition_penalty();
    plain.mutable_sampling()->clear_presence_penalty();
    plain.mutable_sampling()->clear_frequency_penalty();
    plain.mutable_sampling()->clear_logit_bias();
    changed += client.Generate(plain).token_ids != first.token_ids ? 1 : 0;
  }
  EXPECT_EQ(with_rules, kRequests / 2);
  EXPECT_GT(changed, with_rules / 2);
}

// More stop ids than a request may have of its own, with the model's.
TEST(LogitRulesTest, AllStopIdsARequestMayHaveAreTaken) {
  auto cluster = Cluster::Start({.model_dir = TrainedModelDir(),
                                 .decoder_flags = {},
                                 .verifier_flags = {},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  v1::GenerateRequest request = MakeVerseRequests(1, 20)[0];
  request.mutable_stop()->set_ignore_eos(false);
  request.mutable_stop()->set_min_tokens(20);
  for (int i = 0; i < kMaxStopTokenIds; ++i) request.mutable_stop()->add_stop_token_ids(100 + i);
  const GenerateResult result = (*cluster)->client().Generate(request);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.token_ids.size(), 20u);
}

// Stop strings are matched on committed text, wherever windows are cut.
TEST(StopStringTest, EndsTheTextAtTheEarliestMatchAcrossWindows) {
  const NearTieModel model_dir;
  auto cluster = Cluster::Start({.model_dir = model_dir.path(),
                                 .decoder_flags = {"--window_size=2"},
                                 .verifier_flags = {"--window_size=2"},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  TestClient& client = (*cluster)->client();
  for (const v1::GenerateRequest& request : MakeRequests(4, kMaxTokens)) {
    const GenerateResult whole = client.Generate(request);
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    ASSERT_GT(whole.text.size(), 20u);
    // A string from the middle of the answer, longer than any token of this tokeniser.
    size_t begin = whole.text.size() / 2;
    while ((whole.text[begin] & 0xc0) == 0x80) ++begin;
    size_t end = begin + 4;
    while (end < whole.text.size() && (whole.text[end] & 0xc0) == 0x80) ++end;
    const std::string stop = whole.text.substr(begin, end - begin);
    v1::GenerateRequest stopped = request;
    stopped.mutable_stop()->add_stop(stop);
    const GenerateResult result = client.Generate(stopped);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.violation, "");
    EXPECT_EQ(result.text, whole.text.substr(0, whole.text.find(stop)));
    EXPECT_EQ(result.complete->finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(result.complete->stop_string(), stop);
    ASSERT_LE(result.token_ids.size(), whole.token_ids.size());
    EXPECT_TRUE(
        std::equal(result.token_ids.begin(), result.token_ids.end(), whole.token_ids.begin()));
    EXPECT_EQ(result.complete->output_tokens(), static_cast<int>(result.token_ids.size()));
    EXPECT_TRUE(IsSameAnswer(client.Generate(stopped), result));
  }
}

}  // namespace
}  // namespace selfsame::testing
