// Thousands of clients that go away at any time leave nothing behind.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "decoder/client/counter_random.h"
#include "tests/integration/cluster.h"
#include "tests/integration/metrics_reader.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

constexpr int kCalls = 2000 / kTokenDivisor;
constexpr int kLanes = 24;
constexpr std::chrono::seconds kPatience{60};

bool BecomesZero(const std::string& address, const std::string& name) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (ReadMetric(address, name) != 0) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

struct Tally {
  std::atomic<int> served = 0;
  std::atomic<int> cancelled = 0;
  std::atomic<int> expired = 0;
  std::atomic<int> others = 0;
};

// One call that ends by itself, by a deadline or by the client, somewhere.
void CallOnce(TestClient& client, const v1::GenerateRequest& request, client::CounterRandom random,
              Tally& tally) {
  CallOptions options;
  const uint64_t kind = random.Below(10);
  const auto last_token = static_cast<int>(random.Below(40));
  if (kind < 6) options.on_chunk = [last_token](int count) { return count <= last_token; };
  if (kind >= 6 && kind < 9) options.timeout = std::chrono::milliseconds(1 + random.Below(150));
  const GenerateResult result = client.Generate(request, options);
  EXPECT_EQ(result.violation, "");
  switch (result.status.code()) {
    case absl::StatusCode::kOk:
      ++tally.served;
      break;
    case absl::StatusCode::kCancelled:
      ++tally.cancelled;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      ++tally.expired;
      break;
    default:
      ++tally.others;
      ADD_FAILURE() << result.status;
  }
}

TEST(CancelTest, ThousandsOfClientsThatGoAwayLeaveNothingBehind) {
  const NearTieModel model;
  const std::string metrics = "--metrics_listen=127.0.0.1:0";
  auto cluster = Cluster::Start({.model_dir = model.path(),
                                 .decoder_flags = {metrics, "--max_queue=4096", "--kv_size_mb=1"},
                                 .verifier_flags = {metrics, "--kv_size_mb=1"},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  TestClient& client = (*cluster)->client();
  const std::string decoder = MetricsAddress((*cluster)->decoder());
  const std::string verifier = MetricsAddress((*cluster)->verifier(0));

  auto requests = MakeRequests(64, 120);
  const v1::GenerateRequest control = requests[1];
  const GenerateResult before = client.Generate(control);
  ASSERT_TRUE(before.status.ok()) << before.status;
  for (size_t i = 0; i < requests.size(); ++i) requests[i].set_is_deterministic(i % 4 != 0);

  Tally tally;
  std::atomic<int> next = 0;
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes.emplace_back([&] {
      for (int i = next++; i < kCalls; i = next++) {
        CallOnce(client, requests[static_cast<size_t>(i) % requests.size()],
                 client::CounterRandom(static_cast<uint64_t>(i)), tally);
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  EXPECT_EQ(tally.served + tally.cancelled + tally.expired, kCalls);
  EXPECT_GT(tally.cancelled, kCalls / 4);
  EXPECT_GT(tally.expired, kCalls / 20);

  for (const char* name : {"selfsame_num_requests_running", "selfsame_num_requests_waiting",
                           "selfsame_sessions", "selfsame_kv_cache_usage_perc"}) {
    EXPECT_TRUE(BecomesZero(decoder, name)) << name << " is " << ReadMetric(decoder, name);
  }
  for (const char* name : {"selfsame_verifier_sessions", "selfsame_kv_cache_usage_perc"}) {
    EXPECT_TRUE(BecomesZero(verifier, name)) << name << " is " << ReadMetric(verifier, name);
  }
  // One more was served before; a client may go when its answer is complete.
  EXPECT_GE(ReadMetric(decoder, "selfsame_requests_total", "outcome=\"ok\""), tally.served + 1);
  // Those that expired on their way never arrived.
  EXPECT_LE(ReadMetric(decoder, "selfsame_requests_total"), kCalls + 1);
  EXPECT_GT(ReadMetric(decoder, "selfsame_requests_total"), kCalls / 2);
  EXPECT_EQ(ReadMetric(decoder, "selfsame_steps_waited_for_verdict_total"), 0);
  EXPECT_TRUE(IsSameAnswer(client.Generate(control), before));
}

}  // namespace
}  // namespace selfsame::testing
