// The promise, its controls, and the power of the check.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

constexpr int kRequests = 12;
constexpr int kMaxTokens = 192;

struct Load {
  int concurrency;
  uint64_t order_seed;
  int background;
};
constexpr Load kLoads[] = {{2, 5, 0}, {4, 0, 0}, {12, 7, 2}, {3, 11, 6}};

// On a model where ties are everywhere, and on a trained one.
class DeterminismTest : public ::testing::TestWithParam<const char*> {
 protected:
  bool is_trained() const { return std::string(GetParam()) == "Trained"; }

  void Start(const std::string& verifier_program) {
    auto cluster = Cluster::Start({.model_dir = is_trained() ? TrainedModelDir() : model_.path(),
                                   .decoder_flags = {"--max_batch_size=16"},
                                   .verifier_flags = {},
                                   .verifier_program = verifier_program,
                                   .other_verifiers = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  std::vector<v1::GenerateRequest> Requests() const {
    return is_trained() ? MakeVerseRequests(kRequests, kMaxTokens / kTokenDivisor)
                        : MakeRequests(kRequests, kMaxTokens);
  }

  std::vector<GenerateResult> ServeAlone(const std::vector<v1::GenerateRequest>& requests) {
    return ServeAll(cluster_->client(), requests, ArrivalOrder(kRequests, 0), 1);
  }

  std::vector<GenerateResult> ServeUnder(const Load& load,
                                         const std::vector<v1::GenerateRequest>& requests) {
    const Background background(cluster_->client(), load.background);
    return ServeAll(cluster_->client(), requests, ArrivalOrder(kRequests, load.order_seed),
                    load.concurrency);
  }

  NearTieModel model_;
  std::unique_ptr<Cluster> cluster_;
};

INSTANTIATE_TEST_SUITE_P(Models, DeterminismTest, ::testing::Values("NearTies", "Trained"),
                         [](const auto& info) { return std::string(info.param); });

void ExpectWellFormed(const std::vector<GenerateResult>& results) {
  for (const GenerateResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.violation, "");
    ASSERT_TRUE(result.complete.has_value());
    EXPECT_EQ(result.complete->output_tokens(), static_cast<int>(result.token_ids.size()));
    EXPECT_EQ(result.logprob_bits.size(), result.token_ids.size());
    EXPECT_NE(result.complete->fingerprint(), "");
    EXPECT_EQ(result.complete->fingerprint(), result.started->fingerprint());
  }
}

int CountRollbacks(const std::vector<GenerateResult>& results) {
  int count = 0;
  for (const GenerateResult& result : results) count += result.complete->rollbacks();
  return count;
}

TEST_P(DeterminismTest, AnswersDoNotDependOnLoadOrderOrBackground) {
  ASSERT_NO_FATAL_FAILURE(Start("selfsame-verifier"));
  const auto requests = Requests();
  const auto reference = ServeAlone(requests);
  ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(reference));
  int rollbacks = CountRollbacks(reference);
  for (const Load& load : kLoads) {
    const auto results = ServeUnder(load, requests);
    ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(results));
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_TRUE(IsSameAnswer(results[i], reference[i])) << "request " << i;
      EXPECT_EQ(results[i].text, reference[i].text) << "request " << i;
    }
    rollbacks += CountRollbacks(results);
  }
  RecordProperty("rollbacks", rollbacks);
  EXPECT_GT(rollbacks, 0) << "nothing was ever rolled back, so nothing was tested";
}

TEST_P(DeterminismTest, OrdinaryRequestsDiverge) {
  ASSERT_NO_FATAL_FAILURE(Start("selfsame-verifier"));
  const auto requests = MakeOrdinary(Requests());
  const auto reference = ServeAlone(requests);
  int divergences = 0;
  for (const Load& load : kLoads) {
    divergences += CountDivergences(ServeUnder(load, requests), reference);
  }
  RecordProperty("divergences", divergences);
  EXPECT_GT(divergences, 0) << "the fast path is canonical here, so the comparison has no power";
}

TEST_P(DeterminismTest, WithoutRollbackTheSameCheckFindsDivergences) {
  ASSERT_NO_FATAL_FAILURE(Start("selfsame-verifier-without-rollback"));
  const auto requests = Requests();
  const auto reference = ServeAlone(requests);
  int divergences = 0;
  for (const Load& load : kLoads) {
    divergences += CountDivergences(ServeUnder(load, requests), reference);
  }
  RecordProperty("divergences", divergences);
  EXPECT_GT(divergences, 0);
}

TEST_P(DeterminismTest, SeedsMatter) {
  ASSERT_NO_FATAL_FAILURE(Start("selfsame-verifier"));
  v1::GenerateRequest request = Requests()[1];
  ASSERT_GT(request.sampling().temperature(), 0.0f);
  const GenerateResult first = cluster_->client().Generate(request);
  request.mutable_sampling()->set_seed(request.sampling().seed() + 1);
  const GenerateResult second = cluster_->client().Generate(request);
  EXPECT_NE(first.token_ids, second.token_ids);
  // A drawn seed comes back and reproduces its answer.
  request.mutable_sampling()->clear_seed();
  const GenerateResult drawn = cluster_->client().Generate(request);
  ASSERT_TRUE(drawn.started.has_value());
  request.mutable_sampling()->set_seed(drawn.started->params().seed());
  EXPECT_EQ(drawn.complete->seed(), drawn.started->params().seed());
  EXPECT_TRUE(IsSameAnswer(cluster_->client().Generate(request), drawn));
}

}  // namespace
}  // namespace selfsame::testing
