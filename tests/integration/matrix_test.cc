// Every way in which a deterministic request can be served, in one table: kinds of request, shares
// of ordinary traffic, state of the prefix caches, preemption, failover, restart. One answer each.
// Each way is shown to have happened, and ordinary requests are shown to differ.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/cluster.h"
#include "tests/integration/metrics_reader.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

constexpr int kRequests = 12;
// Not fewer under a sanitizer: memory would suffice for all of them.
constexpr int kMaxTokens = 160;
// Of a prompt that others share: blocks of 16 and a rest.
constexpr int kSharedTokens = 85;

// Greedy and seeded requests, a third of them with penalties, every second one beginning with the
// same tokens.
std::vector<v1::GenerateRequest> MatrixRequests() {
  std::vector<v1::GenerateRequest> requests = MakeRequests(kRequests, kMaxTokens, 3);
  const std::vector<v1::GenerateRequest> prefix_source = MakeRequests(40, 1, 17);
  std::vector<int32_t> shared;
  for (const v1::GenerateRequest& request : prefix_source) {
    for (const int32_t id : request.prompt_token_ids().ids()) {
      if (static_cast<int>(shared.size()) < kSharedTokens) shared.push_back(id);
    }
  }
  for (int i = 0; i < kRequests; ++i) {
    v1::GenerateRequest& request = requests[i];
    if (i % 2 == 1) {
      const v1::TokenIds own = request.prompt_token_ids();
      auto& ids = *request.mutable_prompt_token_ids()->mutable_ids();
      ids.Assign(shared.begin(), shared.end());
      ids.Add(own.ids().begin(), own.ids().end());
    }
    if (i % 3 == 1) {
      v1::SamplingParams& sampling = *request.mutable_sampling();
      sampling.set_repetition_penalty(1.2f);
      sampling.set_presence_penalty(0.3f);
      sampling.set_frequency_penalty(-0.2f);
      sampling.set_min_p(0.02f);
      (*sampling.mutable_logit_bias())[7] = 1.5f;
      request.mutable_stop()->set_min_tokens(8);
    }
    if (i % 4 == 2) request.set_top_logprobs(3);
    if (i % 5 == 0) request.set_prompt_logprobs(1);
  }
  return requests;
}

struct Counts {
  int rollbacks = 0;
  int cached = 0;           // prompt tokens from the decoder's cache
  int verifier_cached = 0;  // and from the verifier's
};

// Compares with the reference, and counts.
Counts Check(const std::vector<GenerateResult>& results,
             const std::vector<GenerateResult>& reference) {
  Counts counts;
  for (size_t i = 0; i < reference.size(); ++i) {
    EXPECT_TRUE(results[i].status.ok()) << results[i].status;
    EXPECT_EQ(results[i].violation, "");
    EXPECT_TRUE(IsSameAnswer(results[i], reference[i]))
        << "request " << i << ": " << Describe(results[i]) << " instead of "
        << Describe(reference[i]);
    EXPECT_EQ(results[i].text, reference[i].text) << "request " << i;
    if (!results[i].complete) continue;
    counts.rollbacks += results[i].complete->rollbacks();
    counts.cached += results[i].complete->cached_prompt_tokens();
    counts.verifier_cached += results[i].complete->verifier_cached_prompt_tokens();
  }
  return counts;
}

class MatrixTest : public ::testing::Test {
 protected:
  // `flags` for both services.
  static std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags,
                                               int verifier_count = 1,
                                               const std::vector<std::string>& verifier_only = {}) {
    flags.emplace_back("--metrics_listen=127.0.0.1:0");
    std::vector<std::string> decoder_flags = flags;
    decoder_flags.emplace_back("--max_batch_size=32");
    flags.insert(flags.end(), verifier_only.begin(), verifier_only.end());
    auto cluster = Cluster::Start({.model_dir = Model().path(),
                                   .decoder_flags = decoder_flags,
                                   .verifier_flags = flags,
                                   .verifier_count = verifier_count,
                                   .other_verifiers = {}});
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    return cluster.ok() ? *std::move(cluster) : nullptr;
  }

  // One at a time, with no cache: what every other way is compared with. Served once.
  static const std::vector<GenerateResult>& Reference() {
    static const std::vector<GenerateResult> reference = [] {
      const auto cluster = StartCluster({"--enable_prefix_caching=false"});
      return ServeAll(cluster->client(), Requests(), ArrivalOrder(kRequests, 0), 1);
    }();
    return reference;
  }

  static const std::vector<v1::GenerateRequest>& Requests() {
    static const std::vector<v1::GenerateRequest> requests = MatrixRequests();
    return requests;
  }

  static std::vector<GenerateResult> Serve(Cluster& cluster, uint64_t order_seed, int concurrency) {
    return ServeAll(cluster.client(), Requests(), ArrivalOrder(kRequests, order_seed), concurrency);
  }

  // Serves all requests three times over, at once, and that twice.
  static void CheckCopies(Cluster& cluster) {
    constexpr int kCopies = 3;
    std::vector<v1::GenerateRequest> requests;
    std::vector<GenerateResult> reference;
    for (int copy = 0; copy < kCopies; ++copy) {
      requests.insert(requests.end(), Requests().begin(), Requests().end());
      reference.insert(reference.end(), Reference().begin(), Reference().end());
    }
    for (const uint64_t seed : {7, 8}) {
      const auto order = ArrivalOrder(kCopies * kRequests, seed);
      Check(ServeAll(cluster.client(), requests, order, kCopies * kRequests), reference);
    }
  }

  // `share` of all requests are ordinary ones, mixed among the deterministic ones.
  static std::vector<GenerateResult> ServeAmong(Cluster& cluster, double share, uint64_t order_seed,
                                                int concurrency) {
    std::vector<v1::GenerateRequest> requests = Requests();
    const int ordinary = static_cast<int>(kRequests * share / (1 - share) + 0.5);
    for (v1::GenerateRequest& request : MakeRequests(ordinary, 12, 1000 + order_seed)) {
      request.set_is_deterministic(false);
      requests.push_back(std::move(request));
    }
    auto results =
        ServeAll(cluster.client(), requests,
                 ArrivalOrder(static_cast<int>(requests.size()), order_seed), concurrency);
    results.resize(kRequests);
    return results;
  }

 private:
  static const NearTieModel& Model() {
    static const NearTieModel model;
    return model;
  }
};

TEST_F(MatrixTest, CachesAndBackground) {
  const auto cluster = StartCluster({});
  ASSERT_NE(cluster, nullptr);
  const Counts cold = Check(Serve(*cluster, 0, 1), Reference());
  const Counts warm = Check(Serve(*cluster, 0, 1), Reference());
  // The first time only what several prompts share can be found.
  EXPECT_GT(cold.cached, 0);
  EXPECT_GT(warm.cached, cold.cached);
  EXPECT_GT(warm.verifier_cached, cold.verifier_cached);
  int rollbacks = cold.rollbacks + warm.rollbacks;
  for (const auto& [share, concurrency] :
       std::vector<std::pair<double, int>>{{0.0, 2}, {0.0, 12}, {0.5, 4}, {0.98, 3}, {0.98, 24}}) {
    SCOPED_TRACE(::testing::Message() << share << " ordinary, " << concurrency << " in flight");
    rollbacks +=
        Check(ServeAmong(*cluster, share, 5 + concurrency, concurrency), Reference()).rollbacks;
  }
  EXPECT_GT(rollbacks, 0);
  const std::string metrics = MetricsAddress(cluster->decoder());
  EXPECT_EQ(ReadMetric(metrics, "selfsame_steps_waited_for_verdict_total"), 0);
  EXPECT_EQ(ReadMetric(metrics, "selfsame_ordinary_rows_waited_for_verdict_total"), 0);
}

TEST_F(MatrixTest, Preemption) {
  // One context of 1,024 tokens and little more.
  const auto cluster = StartCluster({"--kv_size_mb=1"});
  ASSERT_NE(cluster, nullptr);
  CheckCopies(*cluster);
  const std::string decoder = MetricsAddress(cluster->decoder());
  EXPECT_GT(ReadMetric(decoder, "selfsame_num_preemptions_total"), 0);
}

TEST_F(MatrixTest, Eviction) {
  const auto cluster = StartCluster({}, 1, {"--kv_size_mb=1"});
  ASSERT_NE(cluster, nullptr);
  CheckCopies(*cluster);
  const std::string verifier = MetricsAddress(cluster->verifier(0));
  EXPECT_GT(ReadMetric(verifier, "selfsame_verifier_evictions_total"), 0);
  EXPECT_GT(ReadMetric(verifier, "selfsame_verifier_rebuilds_total"), 0);
}

TEST_F(MatrixTest, TwoVerifiersAndTheLossOfOne) {
  const auto cluster = StartCluster({}, 2);
  ASSERT_NE(cluster, nullptr);
  const std::string metrics = MetricsAddress(cluster->decoder());
  while (ReadMetric(metrics, "selfsame_verifiers_up") != 2) std::this_thread::yield();
  Check(Serve(*cluster, 2, 6), Reference());
  // Killed once a quarter of the requests have begun to answer.
  std::vector<GenerateResult> results(kRequests);
  std::atomic<int> begun = 0;
  {
    std::vector<std::thread> lanes;
    for (int i = 0; i < kRequests; ++i) {
      lanes.emplace_back([&, i] {
        CallOptions options;
        bool is_first = true;
        options.on_chunk = [&](int) {
          if (std::exchange(is_first, false) && ++begun == kRequests / 4) cluster->KillVerifier(0);
          return true;
        };
        results[i] = cluster->client().Generate(Requests()[i], options);
      });
    }
    for (std::thread& lane : lanes) lane.join();
  }
  Check(results, Reference());
  EXPECT_GT(ReadMetric(metrics, "selfsame_failovers_total"), 0);
  ASSERT_TRUE(cluster->RestartVerifier(0).ok());
  Check(Serve(*cluster, 3, 6), Reference());
}

TEST_F(MatrixTest, RestartOfBoth) {
  for (const uint64_t seed : {21, 22}) {
    const auto cluster = StartCluster({});
    ASSERT_NE(cluster, nullptr);
    Check(ServeAmong(*cluster, 0.5, seed, 5), Reference());
  }
}

TEST_F(MatrixTest, OrdinaryRequestsDiffer) {
  const auto cluster = StartCluster({});
  ASSERT_NE(cluster, nullptr);
  const auto requests = MakeOrdinary(Requests());
  const auto alone = ServeAll(cluster->client(), requests, ArrivalOrder(kRequests, 0), 1);
  const auto together = ServeAll(cluster->client(), requests, ArrivalOrder(kRequests, 4), 12);
  EXPECT_GT(CountDivergences(alone, together), 0);
}

}  // namespace
}  // namespace selfsame::testing
