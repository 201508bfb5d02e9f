// A decoder whose device is lost for good: the requests in progress end, and so does the process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kReason[] = "the decoder's device is lost: an unrecoverable error";
// Ends where the device is lost, not before.
constexpr int kTokens = 700;

class DeviceLossTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cluster = Cluster::Start({.model_dir = model_.path(),
                                   .decoder_flags = {},
                                   .verifier_flags = {},
                                   .decoder_program = "selfsame-decoder-on-failing-device",
                                   .other_verifiers = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  TestClient& client() { return cluster_->client(); }

  // Serves requests of both kinds, all at once, and calls `on_chunk` for each chunk of them.
  std::vector<GenerateResult> ServeUntilTheLoss(const std::function<void()>& on_chunk) {
    auto requests = MakeRequests(4, kTokens);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].mutable_stop()->set_ignore_eos(true);
      requests[i].set_is_deterministic(i < 2);
    }
    std::vector<GenerateResult> results(requests.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < requests.size(); ++i) {
      threads.emplace_back([&, i] {
        CallOptions options;
        options.on_chunk = [&](int) {
          on_chunk();
          return true;
        };
        results[i] = client().Generate(requests[i], options);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  void ExpectAllLost(const std::vector<GenerateResult>& results) {
    for (const GenerateResult& result : results) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
      EXPECT_THAT(std::string(result.status.message()), HasSubstr(kReason));
      EXPECT_FALSE(result.token_ids.empty());
      EXPECT_EQ(result.violation, "");
    }
  }

  // Waits for the end of the process.
  void ExpectEndWithTheReason() {
    EXPECT_EQ(cluster_->decoder().Wait(), 1);
    EXPECT_THAT(cluster_->decoder().stderr_text(),
                HasSubstr(std::string("selfsame-decoder: error: ") + kReason + "\n"));
  }

  NearTieModel model_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(DeviceLossTest, RequestsHealthAndProcessEnd) {
  std::thread watch([this] { EXPECT_TRUE(client().WaitForHealth(kHealthName, false)); });
  ExpectAllLost(ServeUntilTheLoss([] {}));
  watch.join();
  ExpectEndWithTheReason();
}

// After the signal of the drain another one would end the process at once, without a word.
TEST_F(DeviceLossTest, AProcessThatDrainsEndsWithTheReasonToo) {
  std::once_flag is_signalled;
  const auto results = ServeUntilTheLoss(
      [&] { std::call_once(is_signalled, [this] { cluster_->decoder().Signal(SIGTERM); }); });
  for (const GenerateResult& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
  }
  ExpectEndWithTheReason();
}

}  // namespace
}  // namespace selfsame::testing
