// Processes and clients that go away.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

using ::testing::HasSubstr;

// Takes long enough that what happens at the first token happens in its midst.
constexpr int kLongAnswer = 400 / kTokenDivisor;

class FailureTest : public ::testing::Test {
 protected:
  void Start(int verifier_count, std::vector<std::string> decoder_flags = {}) {
    auto cluster = Cluster::Start({.model_dir = TrainedModelDir(),
                                   .decoder_flags = std::move(decoder_flags),
                                   .verifier_flags = {},
                                   .verifier_count = verifier_count,
                                   .other_verifiers = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  TestClient& client() { return cluster_->client(); }

  // Serves the same requests one by one, and then all at once while `fault` happens at the first
  // token.
  void ExpectSameAnswersWhen(const std::function<void()>& fault) {
    constexpr int kRequests = 8;
    const auto requests = MakeRequests(kRequests, 100, 9);
    const auto reference = ServeAll(client(), requests, ArrivalOrder(kRequests, 0), 1);
    std::vector<GenerateResult> results(kRequests);
    std::vector<std::thread> threads;
    std::atomic<bool> has_happened = false;
    for (int i = 0; i < kRequests; ++i) {
      threads.emplace_back([&, i] {
        CallOptions options;
        options.on_chunk = [&](int) {
          if (!has_happened.exchange(true)) fault();
          return true;
        };
        results[i] = client().Generate(requests[i], options);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_TRUE(IsSameAnswer(results[i], reference[i])) << i << ": " << Describe(results[i]);
      EXPECT_EQ(results[i].violation, "");
    }
  }

  std::unique_ptr<Cluster> cluster_;
};

v1::GenerateRequest LongRequest(int index) {
  auto requests = MakeRequests(index + 1, kLongAnswer, 5);
  requests[index].mutable_stop()->set_ignore_eos(true);
  return requests[index];
}

TEST_F(FailureTest, ClientThatCancelsIsForgotten) {
  ASSERT_NO_FATAL_FAILURE(Start(1));
  for (const bool is_deterministic : {false, true}) {
    v1::GenerateRequest request = LongRequest(0);
    request.set_is_deterministic(is_deterministic);
    CallOptions options;
    options.on_chunk = [](int) { return false; };
    const GenerateResult result = client().Generate(request, options);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled) << result.status;
    EXPECT_TRUE(client().WaitUntilIdle());
  }
}

TEST_F(FailureTest, ClientThatIsKilledIsForgotten) {
  ASSERT_NO_FATAL_FAILURE(Start(1));
  for (const char* kind : {"--deterministic=false", "--deterministic=true"}) {
    auto process = ChildProcess::Start(
        "selfsame", {"generate", absl::StrCat("--server=", cluster_->decoder_address()),
                     "--prompt=hello", "--ignore_eos", "--max_tokens=1000", kind});
    ASSERT_TRUE(process.ok());
    ASSERT_TRUE(client().WaitUntilBusy());
    (*process)->Signal(SIGKILL);
    EXPECT_EQ((*process)->Wait(), -SIGKILL) << "it had ended before it could vanish";
    EXPECT_TRUE(client().WaitUntilIdle());
  }
}

TEST_F(FailureTest, VerifierKilledMidStreamAndRestartedGivesTheSameAnswer) {
  ASSERT_NO_FATAL_FAILURE(Start(1));
  for (const int index : {0, 1}) {  // greedy, seeded
    const v1::GenerateRequest request = LongRequest(index);
    const GenerateResult reference = client().Generate(request);
    ASSERT_TRUE(reference.status.ok()) << reference.status;
    int kills = 0;
    CallOptions options;
    options.on_chunk = [&](int token_count) {
      // Early and in the middle, while windows are in flight.
      if (token_count < 1 + kills * kLongAnswer / 2 || kills == 2) return true;
      ++kills;
      cluster_->KillVerifier(0);
      const absl::Status status = cluster_->RestartVerifier(0);
      EXPECT_TRUE(status.ok()) << status;
      return true;
    };
    const GenerateResult result = client().Generate(request, options);
    EXPECT_EQ(kills, 2);
    EXPECT_TRUE(IsSameAnswer(result, reference)) << Describe(result);
    EXPECT_EQ(result.violation, "");
    EXPECT_EQ(result.text, reference.text);
    EXPECT_EQ(result.complete->fingerprint(), reference.complete->fingerprint());
  }
}

TEST_F(FailureTest, ManyRequestsMoveToTheOtherVerifier) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  ExpectSameAnswersWhen([this] { cluster_->KillVerifier(0); });
}

TEST_F(FailureTest, ManyRequestsMoveAwayFromAVerifierThatDrains) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  ExpectSameAnswersWhen([this] { cluster_->verifier(0).Signal(SIGTERM); });
  EXPECT_EQ(cluster_->verifier(0).Wait(), 0) << cluster_->verifier(0).stderr_text();
}

TEST_F(FailureTest, ManyRequestsMoveAwayFromAVerifierThatHangs) {
  ASSERT_NO_FATAL_FAILURE(Start(2, {"--verdict_timeout_ms=1000"}));
  ExpectSameAnswersWhen([this] { cluster_->verifier(0).Signal(SIGSTOP); });
}

TEST_F(FailureTest, AVerifierThatHangsAloneCostsItsRequestAndNoOther) {
  ASSERT_NO_FATAL_FAILURE(Start(1, {"--verdict_timeout_ms=1000", "--failover_timeout_ms=1000"}));
  v1::GenerateRequest request = LongRequest(0);
  const GenerateResult reference = client().Generate(request);
  CallOptions options;
  options.on_chunk = [this](int) {
    cluster_->verifier(0).Signal(SIGSTOP);
    return true;
  };
  const GenerateResult result = client().Generate(request, options);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
  EXPECT_TRUE(
      std::equal(result.token_ids.begin(), result.token_ids.end(), reference.token_ids.begin()));
  v1::GenerateRequest ordinary = request;
  ordinary.set_is_deterministic(false);
  EXPECT_TRUE(client().Generate(ordinary).status.ok());

  cluster_->verifier(0).Signal(SIGCONT);
  ASSERT_TRUE(client().WaitForHealth(kDeterministicHealthName, true));
  EXPECT_TRUE(IsSameAnswer(client().Generate(request), reference));
}

TEST_F(FailureTest, WithoutVerifierTheRequestFailsAfterTheTimeoutAndOrdinaryOnesGoOn) {
  ASSERT_NO_FATAL_FAILURE(Start(1, {"--failover_timeout_ms=200"}));
  v1::GenerateRequest request = LongRequest(0);
  const GenerateResult reference = client().Generate(request);
  bool is_killed = false;
  CallOptions options;
  options.on_chunk = [&](int) {
    if (!is_killed) cluster_->KillVerifier(0);
    is_killed = true;
    return true;
  };
  const GenerateResult result = client().Generate(request, options);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
  EXPECT_FALSE(result.complete.has_value());
  // What was committed was delivered, and stands.
  ASSERT_FALSE(result.token_ids.empty());
  ASSERT_LE(result.token_ids.size(), reference.token_ids.size());
  EXPECT_TRUE(
      std::equal(result.token_ids.begin(), result.token_ids.end(), reference.token_ids.begin()));
  EXPECT_EQ(result.violation, "");

  ASSERT_TRUE(client().WaitForHealth(kDeterministicHealthName, false));
  EXPECT_EQ(*client().IsServing(kHealthName), true);
  request.set_is_deterministic(false);
  EXPECT_TRUE(client().Generate(request).status.ok());

  ASSERT_TRUE(cluster_->RestartVerifier(0).ok());
  ASSERT_TRUE(client().WaitForHealth(kDeterministicHealthName, true));
  request.set_is_deterministic(true);
  EXPECT_TRUE(IsSameAnswer(client().Generate(request), reference));
}

TEST_F(FailureTest, ExpectedFingerprintIsHeldTo) {
  ASSERT_NO_FATAL_FAILURE(Start(1, {"--failover_timeout_ms=1000"}));
  v1::GenerateRequest request = MakeRequests(1, 4)[0];
  const GenerateResult first = client().Generate(request);
  ASSERT_TRUE(first.status.ok()) << first.status;
  request.set_expected_fingerprint(first.started->fingerprint());
  EXPECT_TRUE(IsSameAnswer(client().Generate(request), first));
  request.set_expected_fingerprint("another");
  const GenerateResult refused = client().Generate(request);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kFailedPrecondition) << refused.status;
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("fingerprint"));
}

TEST_F(FailureTest, RequestsBeyondTheQueueAreRefusedWithARetryHint) {
  ASSERT_NO_FATAL_FAILURE(Start(0, {"--max_queue=2", "--max_batch_size=1"}));
  auto requests = MakeOrdinary(MakeRequests(12, 200));
  for (auto& request : requests) request.mutable_stop()->set_ignore_eos(true);
  const auto results = ServeAll(client(), requests, ArrivalOrder(12, 0), 12);
  int served = 0;
  int refused = 0;
  for (const GenerateResult& result : results) {
    served += result.status.ok();
    if (result.status.ok()) continue;
    ++refused;
    EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted) << result.status;
    EXPECT_TRUE(RetryAfterMsOf(result.status).has_value());
  }
  EXPECT_GE(served, 2);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace selfsame::testing
