// A decoder under the canonical schedule is an authority by itself: the answers and the fingerprint
// of a decoder and a verifier, without a session.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kRequests = 12;
constexpr int kMaxTokens = 160 / kTokenDivisor;

class CanonicalDecoderTest : public ::testing::Test {
 protected:
  std::unique_ptr<Cluster> Start(int verifier_count, const std::vector<std::string>& flags) {
    auto cluster = Cluster::Start({.model_dir = model_.path(),
                                   .decoder_flags = flags,
                                   .verifier_flags = {},
                                   .verifier_count = verifier_count,
                                   .other_verifiers = {}});
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    return cluster.ok() ? *std::move(cluster) : nullptr;
  }

  NearTieModel model_;
};

TEST_F(CanonicalDecoderTest, AnswersAreThoseOfDecoderAndVerifier) {
  auto requests = MakeRequests(kRequests, kMaxTokens);
  std::vector<GenerateResult> expected;
  {
    const auto pair = Start(1, {});
    ASSERT_NE(pair, nullptr);
    expected = ServeAll(pair->client(), requests, ArrivalOrder(kRequests, 3), 6);
  }
  for (const char* batch_tokens : {"--max_batch_tokens=32", "--max_batch_tokens=100"}) {
    const auto alone = Start(0, {"--schedule=canonical", "--max_batch_size=8", batch_tokens});
    ASSERT_NE(alone, nullptr);
    EXPECT_TRUE(alone->client().WaitForHealth(kDeterministicHealthName, true));
    const Background background(alone->client(), 2);
    const auto results = ServeAll(alone->client(), requests, ArrivalOrder(kRequests, 8), 5);
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(results[i].status.ok()) << results[i].status;
      EXPECT_TRUE(IsSameAnswer(results[i], expected[i])) << "request " << i;
      EXPECT_EQ(results[i].text, expected[i].text);
      EXPECT_EQ(results[i].complete->finish_reason(), expected[i].complete->finish_reason());
      EXPECT_EQ(results[i].started->fingerprint(), expected[i].started->fingerprint());
      EXPECT_EQ(results[i].complete->fingerprint(), expected[i].complete->fingerprint());
      EXPECT_EQ(results[i].complete->windows(), 0);
      EXPECT_EQ(results[i].complete->rollbacks(), 0);
    }
  }
}

TEST_F(CanonicalDecoderTest, TokensStandAtOnceAndAnAnswerGoesOn) {
  const auto alone = Start(0, {"--schedule=canonical"});
  ASSERT_NE(alone, nullptr);
  v1::GenerateRequest request = MakeRequests(2, 24)[1];
  request.mutable_stop()->set_ignore_eos(true);
  const GenerateResult whole = alone->client().Generate(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  request.set_stream_candidates(true);
  const GenerateResult shown = alone->client().Generate(request);
  EXPECT_TRUE(IsSameAnswer(shown, whole)) << Describe(shown);
  EXPECT_EQ(shown.candidate_count, 0);
  request.mutable_resume_token_ids()->Assign(whole.token_ids.begin(), whole.token_ids.begin() + 10);
  const GenerateResult rest = alone->client().Generate(request);
  ASSERT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_EQ(rest.violation, "");
  EXPECT_EQ(rest.token_ids,
            std::vector<int32_t>(whole.token_ids.begin() + 10, whole.token_ids.end()));
  EXPECT_EQ(rest.logprob_bits,
            std::vector<uint32_t>(whole.logprob_bits.begin() + 10, whole.logprob_bits.end()));
  EXPECT_EQ(rest.complete->output_tokens(), 24);
}

TEST_F(CanonicalDecoderTest, ColdAndWarmAnswersHaveTheSameBits) {
  const auto alone = Start(0, {"--schedule=canonical"});
  ASSERT_NE(alone, nullptr);
  const auto requests = MakeRequests(kRequests, 40);
  const auto cold = ServeAll(alone->client(), requests, ArrivalOrder(kRequests, 0), 1);
  const auto warm = ServeAll(alone->client(), requests, ArrivalOrder(kRequests, 4), 6);
  int cached = 0;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(warm[i].status.ok()) << warm[i].status;
    EXPECT_TRUE(IsSameAnswer(warm[i], cold[i])) << "request " << i;
    EXPECT_EQ(cold[i].complete->cached_prompt_tokens(), 0);
    EXPECT_EQ(warm[i].complete->verifier_cached_prompt_tokens(), 0);
    cached += warm[i].complete->cached_prompt_tokens();
  }
  EXPECT_GT(cached, 100);
}

TEST_F(CanonicalDecoderTest, AnotherFingerprintIsRefused) {
  const auto alone = Start(0, {"--schedule=canonical"});
  ASSERT_NE(alone, nullptr);
  auto request = MakeRequests(1, 5)[0];
  const GenerateResult first = alone->client().Generate(request);
  ASSERT_TRUE(first.status.ok()) << first.status;
  request.set_expected_fingerprint(first.complete->fingerprint());
  EXPECT_TRUE(alone->client().Generate(request).status.ok());
  request.set_expected_fingerprint(std::string(64, '0'));
  const absl::Status status = alone->client().Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(first.complete->fingerprint()));
  // Ordinary requests carry none.
  request.clear_expected_fingerprint();
  const GenerateResult ordinary = alone->client().Generate(MakeOrdinary({request})[0]);
  EXPECT_EQ(ordinary.complete->fingerprint(), "");
  EXPECT_EQ(ordinary.token_ids, first.token_ids);
}

TEST_F(CanonicalDecoderTest, VerifiersAreRefused) {
  std::vector<std::string> flags = TestServiceFlags(model_.path());
  flags.insert(flags.end(),
               {"--listen=127.0.0.1:0", "--schedule=canonical", "--verifiers=127.0.0.1:1"});
  auto process = ChildProcess::Start("selfsame-decoder", flags);
  ASSERT_TRUE(process.ok());
  EXPECT_EQ((*process)->Wait(), 1);
  EXPECT_THAT((*process)->stderr_text(),
              HasSubstr("--verifiers: are not needed with --schedule=canonical"));
}

}  // namespace
}  // namespace selfsame::testing
