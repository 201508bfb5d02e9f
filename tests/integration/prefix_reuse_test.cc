// The prefix caches of both real processes: cold, warm and evicted answers have the same bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

constexpr int kRequests = 8;
constexpr int kMaxTokens = 64;
constexpr int kBlockTokens = 16;

class PrefixCacheTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags) {
    auto cluster = Cluster::Start({.model_dir = model_.path(),
                                   .decoder_flags = flags,
                                   .verifier_flags = flags,
                                   .other_verifiers = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  // Prompts that end just before, on and just after a block's edge, and a long one.
  static std::vector<v1::GenerateRequest> Requests() {
    constexpr int kLengths[kRequests] = {15, 16, 17, 31, 32, 33, 100, 257};
    std::vector<v1::GenerateRequest> requests = MakeRequests(kRequests, kMaxTokens);
    for (int i = 0; i < kRequests; ++i) {
      auto& ids = *requests[static_cast<size_t>(i)].mutable_prompt_token_ids()->mutable_ids();
      ids.Clear();
      for (int j = 0; j < kLengths[i]; ++j) ids.Add(3 + (i * 37 + j * 11 + j * j % 7) % 300);
    }
    return requests;
  }

  std::vector<GenerateResult> Serve(const std::vector<v1::GenerateRequest>& requests,
                                    int concurrency) {
    return ServeAll(cluster_->client(), requests, ArrivalOrder(kRequests, 0), concurrency);
  }

  // Requests that need all of both caches, so that nothing of earlier ones is left.
  void FillCaches() {
    v1::GenerateRequest request = MakeRequests(1, 1)[0];
    for (int i = 0; i < 3; ++i) {
      auto& ids = *request.mutable_prompt_token_ids()->mutable_ids();
      ids.Clear();
      for (int j = 0; j < NearTieModel::kContextLimit - 1; ++j) ids.Add(3 + (i + j * 7) % 300);
      request.mutable_stop()->set_max_tokens(1);
      // The decoder need not come to the end of a prompt whose answer the verifier gives.
      for (const bool is_deterministic : {true, false}) {
        request.set_is_deterministic(is_deterministic);
        const GenerateResult result = cluster_->client().Generate(request);
        ASSERT_TRUE(result.status.ok()) << result.status;
      }
    }
  }

  NearTieModel model_;
  std::unique_ptr<Cluster> cluster_;
};

void ExpectSameAnswers(const std::vector<GenerateResult>& results,
                       const std::vector<GenerateResult>& reference) {
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].status.ok()) << results[i].status;
    EXPECT_TRUE(IsSameAnswer(results[i], reference[i])) << "request " << i << "\n"
                                                        << Describe(results[i]) << "\n"
                                                        << Describe(reference[i]);
  }
}

void ExpectCached(const std::vector<GenerateResult>& results, bool is_warm) {
  for (const GenerateResult& result : results) {
    ASSERT_TRUE(result.complete.has_value());
    const int prompt_tokens = result.complete->prompt_tokens();
    const int expected = is_warm ? (prompt_tokens - 1) / kBlockTokens * kBlockTokens : 0;
    EXPECT_EQ(result.complete->cached_prompt_tokens(), expected) << prompt_tokens;
    EXPECT_EQ(result.complete->verifier_cached_prompt_tokens(), expected) << prompt_tokens;
  }
}

TEST_F(PrefixCacheTest, ColdWarmAndEvictedAnswersHaveTheSameBits) {
  // Room for little more than one request of full length.
  ASSERT_NO_FATAL_FAILURE(Start({"--kv_size_mb=1", "--context_limit=1024"}));
  const auto requests = Requests();
  const auto cold = Serve(requests, 1);
  ExpectCached(cold, /*is_warm=*/false);
  const auto warm = Serve(requests, 1);
  ExpectCached(warm, /*is_warm=*/true);
  ExpectSameAnswers(warm, cold);
  ASSERT_NO_FATAL_FAILURE(FillCaches());
  const auto evicted = Serve(requests, 1);
  ExpectCached(evicted, /*is_warm=*/false);
  ExpectSameAnswers(evicted, cold);
  ExpectSameAnswers(Serve(requests, 4), cold);
}

TEST_F(PrefixCacheTest, TheNextTurnFindsTheAnswerAndACacheThatIsOffChangesNoBit) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  auto requests = Requests();
  const auto first = Serve(requests, 4);
  for (int i = 0; i < kRequests; ++i) {
    auto& ids = *requests[static_cast<size_t>(i)].mutable_prompt_token_ids()->mutable_ids();
    for (const int32_t token_id : first[static_cast<size_t>(i)].token_ids) ids.Add(token_id);
    ids.Add(7);
  }
  const auto second = Serve(requests, 4);
  for (const GenerateResult& result : second) {
    ASSERT_TRUE(result.complete.has_value()) << result.status;
    // All but the last token of the first turn were inputs of rows.
    const int settled = (result.complete->prompt_tokens() - 2) / kBlockTokens * kBlockTokens;
    EXPECT_EQ(result.complete->verifier_cached_prompt_tokens(), settled);
    EXPECT_GT(result.complete->cached_prompt_tokens(), 0);
  }
  ASSERT_NO_FATAL_FAILURE(Start({"--enable_prefix_caching=false"}));
  const auto uncached = Serve(requests, 4);
  ExpectCached(uncached, /*is_warm=*/false);
  ExpectSameAnswers(uncached, second);
}

}  // namespace
}  // namespace selfsame::testing
