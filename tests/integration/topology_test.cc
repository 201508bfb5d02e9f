// Several verifiers for a decoder, and several decoders on a verifier.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"
#include "tests/integration/metrics_reader.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

constexpr int kRequests = 16;

TEST(TopologyTest, SessionsAreSpreadOverVerifiersAndStayWhereTheyAre) {
  const NearTieModel model;
  const std::string metrics = "--metrics_listen=127.0.0.1:0";
  auto cluster = Cluster::Start({.model_dir = model.path(),
                                 .decoder_flags = {metrics},
                                 .verifier_flags = {metrics},
                                 .verifier_count = 2,
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string decoder = MetricsAddress((*cluster)->decoder());
  // Not before both are connected.
  while (ReadMetric(decoder, "selfsame_verifiers_up") != 2) std::this_thread::yield();
  const auto results =
      ServeAll((*cluster)->client(), MakeRequests(kRequests, 100), ArrivalOrder(kRequests, 0), 8);
  for (const GenerateResult& result : results) EXPECT_TRUE(result.status.ok()) << result.status;
  double total = 0;
  for (const int verifier : {0, 1}) {
    const std::string address = MetricsAddress((*cluster)->verifier(verifier));
    const double opened = ReadMetric(address, "selfsame_verifier_sessions_opened_total");
    EXPECT_GE(opened, kRequests / 4);
    total += opened;
  }
  EXPECT_EQ(total, kRequests);
  EXPECT_EQ(ReadMetric(decoder, "selfsame_failovers_total"), 0);
}

TEST(TopologyTest, DecodersThatShareAVerifierGiveTheSameAnswers) {
  const NearTieModel model;
  auto cluster = Cluster::Start({.model_dir = model.path(),
                                 .decoder_flags = {},
                                 .verifier_flags = {},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::string> flags = TestServiceFlags(model.path());
  flags.push_back("--listen=127.0.0.1:0");
  flags.push_back(absl::StrCat("--verifiers=", (*cluster)->verifier_address(0)));
  flags.push_back("--max_batch_size=5");
  auto process = ChildProcess::Start("selfsame-decoder", flags);
  ASSERT_TRUE(process.ok()) << process.status();
  const auto address = (*process)->ReadAddress();
  ASSERT_TRUE(address.ok()) << address.status();
  TestClient& first = (*cluster)->client();
  TestClient second(*address);
  ASSERT_TRUE(second.WaitForHealth(kDeterministicHealthName, true));

  const auto requests = MakeRequests(kRequests, 100);
  const auto reference = ServeAll(first, requests, ArrivalOrder(kRequests, 0), 1);
  std::vector<GenerateResult> from_second;
  std::thread thread(
      [&] { from_second = ServeAll(second, requests, ArrivalOrder(kRequests, 2), 8); });
  const auto from_first = ServeAll(first, requests, ArrivalOrder(kRequests, 1), 8);
  thread.join();
  for (const GenerateResult& result : reference) ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(CountDivergences(from_first, reference), 0);
  ASSERT_EQ(CountDivergences(from_second, reference), 0);
  int rollbacks = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    rollbacks += from_first[i].complete->rollbacks() + from_second[i].complete->rollbacks();
  }
  EXPECT_GT(rollbacks, 0);
}

}  // namespace
}  // namespace selfsame::testing
