// A verifier that breaks the protocol counts as lost: the deterministic request fails, with what
// was committed delivered, and ordinary requests notice nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"
#include "tests/integration/fake_verifier.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kTokens = 200;  // several windows
constexpr int kFailoverTimeoutMs = 150;

class FakeVerifierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto verifier = FakeVerifier::Start(NearTieModel::kContextLimit, NearTieModel::kVocabSize);
    ASSERT_TRUE(verifier.ok()) << verifier.status();
    verifier_ = *std::move(verifier);
    auto cluster = Cluster::Start(
        {.model_dir = model_.path(),
         .decoder_flags = {absl::StrCat("--failover_timeout_ms=", kFailoverTimeoutMs)},
         .verifier_flags = {},
         .verifier_count = 0,
         .other_verifiers = {verifier_->address()}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    ASSERT_TRUE(client().WaitForHealth(kDeterministicHealthName, true));
  }

  TestClient& client() { return cluster_->client(); }

  NearTieModel model_;
  std::unique_ptr<FakeVerifier> verifier_;
  std::unique_ptr<Cluster> cluster_;
};

// The fake speaks the protocol well enough that only its lies are at fault.
TEST_F(FakeVerifierTest, ServesWhenItDoesNotLie) {
  const GenerateResult result = client().Generate(MakeRequests(1, kTokens)[0]);
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.token_ids.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(result.complete->fingerprint(), "fake");
}

class LieTest : public FakeVerifierTest, public ::testing::WithParamInterface<Lie> {};

TEST_P(LieTest, FailsDeterministicRequestsOnly) {
  verifier_->Tell(GetParam());
  auto requests = MakeRequests(3, kTokens);
  requests[1].set_is_deterministic(false);
  requests[2].set_is_deterministic(false);
  const auto results = ServeAll(client(), requests, ArrivalOrder(3, 0), 3);
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kUnavailable) << results[0].status;
  EXPECT_THAT(std::string(results[0].status.message()), HasSubstr("verifier"));
  EXPECT_EQ(results[0].violation, "");
  for (const int i : {1, 2}) {
    EXPECT_TRUE(results[i].status.ok()) << results[i].status;
    EXPECT_FALSE(results[i].token_ids.empty());
  }
  EXPECT_TRUE(client().WaitUntilIdle());
}

INSTANTIATE_TEST_SUITE_P(All, LieTest,
                         ::testing::Values(Lie::kRefusesStreams, Lie::kWrongOpeningLength,
                                           Lie::kOpeningWithoutToken, Lie::kOpeningTwice,
                                           Lie::kUnknownSession, Lie::kUnknownWindow,
                                           Lie::kWrongCommittedLength, Lie::kCommittedLengthFalls,
                                           Lie::kWrongEpoch, Lie::kRollbackWithoutToken,
                                           Lie::kRollbackInSameEpoch, Lie::kTokenOutsideVocabulary,
                                           Lie::kTooFewLogprobs, Lie::kVerdictTwice,
                                           Lie::kUnknownOutcome, Lie::kUnknownEnd,
                                           Lie::kEmptyMessage, Lie::kClosesStream),
                         [](const auto& info) { return LieName(info.param); });

// Any verifier that disagrees on context limit or vocabulary is unfit, and its reason is told.
class UnfitVerifierTest : public ::testing::Test {
 protected:
  void ExpectUnfit(int32_t context_limit, int32_t vocab_size, const std::string& says) {
    auto verifier = FakeVerifier::Start(context_limit, vocab_size);
    ASSERT_TRUE(verifier.ok()) << verifier.status();
    auto cluster = Cluster::Start({.model_dir = model_.path(),
                                   .decoder_flags = {"--failover_timeout_ms=60000"},
                                   .verifier_flags = {},
                                   .verifier_count = 0,
                                   .other_verifiers = {(*verifier)->address()}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    TestClient& client = (*cluster)->client();
    const GenerateResult result = client.Generate(MakeRequests(1, 4)[0]);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr(says));
    const auto info = client.GetServerInfo();
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_FALSE(info->verifiers(0).connected());
    EXPECT_THAT(info->verifiers(0).last_error(), HasSubstr(says));
    EXPECT_EQ((*verifier)->stream_count(), 0);
    EXPECT_EQ(*client.IsServing(kHealthName), true);
    EXPECT_EQ(*client.IsServing(kDeterministicHealthName), false);
    // Once it agrees it is taken.
    (*verifier)->SetContextLimit(NearTieModel::kContextLimit);
    (*verifier)->SetVocabSize(NearTieModel::kVocabSize);
    ASSERT_TRUE(client.WaitForHealth(kDeterministicHealthName, true));
    EXPECT_TRUE(client.Generate(MakeRequests(1, 4)[0]).status.ok());
  }

  NearTieModel model_;
};

TEST_F(UnfitVerifierTest, OtherContextLimit) {
  ExpectUnfit(NearTieModel::kContextLimit / 2, NearTieModel::kVocabSize,
              "its context limit is 512, this decoder's is 1024");
}

TEST_F(UnfitVerifierTest, OtherVocabulary) {
  ExpectUnfit(NearTieModel::kContextLimit, NearTieModel::kVocabSize + 1,
              "its vocabulary has 321 tokens, this decoder's has 320");
}

}  // namespace
}  // namespace selfsame::testing
