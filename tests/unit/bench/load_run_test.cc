#include "bench/serve/load_run.h"

#include "common/errors.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace selfsame::bench {
namespace {

std::vector<PlannedRequest> MakePlan(int requests, double rate) {
  LoadOptions options;
  options.requests = requests;
  options.rate = rate;
  options.vocab_size = 10;
  return PlanLoad(options);
}

TEST(LoadRunTest, SendsEveryRequestOnce) {
  client::FakeServer server;
  for (const double rate : {0.0, 1000.0}) {
    const LoadResult result = RunLoad(server, MakePlan(40, rate), 4, 0.0);
    EXPECT_EQ(result.samples.size(), 40u);
    EXPECT_EQ(result.errors, 0);
  }
}

TEST(LoadRunTest, CountsFailuresAndGoesOn) {
  client::FakeServer server([](const client::Request&, client::Answer answer,
                               int index) -> absl::StatusOr<client::Answer> {
    if (index % 4 == 0) return UnavailableError("gone");
    return answer;
  });
  const LoadResult result = RunLoad(server, MakePlan(40, 0.0), 4, 0.0);
  EXPECT_EQ(result.errors, 10);
  EXPECT_EQ(result.samples.size(), 30u);
}

TEST(LoadRunTest, CountsPlannedCancelsApartFromFailures) {
  client::FakeServer server([](const client::Request& request, client::Answer answer,
                               int index) -> absl::StatusOr<client::Answer> {
    if (request.cancel_after_tokens || index == 0) return CancelledError("cancelled");
    return answer;
  });
  std::vector<PlannedRequest> plan = MakePlan(40, 0.0);
  for (size_t i = 0; i < plan.size(); i += 4) plan[i].request.cancel_after_tokens = 3;
  plan[0].request.cancel_after_tokens.reset();
  const LoadResult result = RunLoad(server, plan, 1, 0.0);
  EXPECT_EQ(result.cancelled, 9);
  EXPECT_EQ(result.errors, 1);
  EXPECT_EQ(result.samples.size(), 30u);
}

TEST(LoadRunTest, SendsNothingThatArrivesAfterTheEnd) {
  client::FakeServer server;
  const std::vector<PlannedRequest> plan = MakePlan(1000, 1000.0);
  const LoadResult result = RunLoad(server, plan, 4, plan[20].arrival_s);
  EXPECT_EQ(result.samples.size(), 21u);
}

}  // namespace
}  // namespace selfsame::bench
