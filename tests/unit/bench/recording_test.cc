#include "bench/serve/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace selfsame::bench {
namespace {

using ::testing::ElementsAre;

TEST(RecordingTest, KeepsDeterministicRequestsInOrderOfArrival) {
  std::vector<PlannedRequest> plan(3);
  for (int i = 0; i < 3; ++i) {
    plan[i].arrival_s = 0.5 * i;
    plan[i].request.input = std::vector<int32_t>{i, i + 1};
    plan[i].request.temperature = 0.75f;
    plan[i].request.seed = 0xfedcba9876543210u;
  }
  LoadResult result;
  result.samples.resize(3);
  const size_t order[] = {2, 1, 0};
  for (int i = 0; i < 3; ++i) {
    LoadSample& sample = result.samples[i];
    sample.plan_index = order[i];
    sample.is_deterministic = order[i] != 1;
    sample.seconds_to_first_token = 0.25;
    sample.seconds_per_output_token = 0.125;
    sample.windows = 3;
    sample.token_ids = {7, static_cast<int32_t>(order[i])};
  }
  const auto read = ReadRecording(WriteRecording(plan, result));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  const RecordedRequest& last = (*read)[1];
  EXPECT_EQ((*read)[0].arrival_s, 0.0);
  EXPECT_EQ(last.arrival_s, 1.0);
  EXPECT_EQ(last.first_token_s, 0.25);
  EXPECT_EQ(last.token_s, 0.125);
  EXPECT_EQ(last.temperature, 0.75f);
  EXPECT_EQ(last.seed, 0xfedcba9876543210u);
  EXPECT_EQ(last.windows, 3);
  EXPECT_THAT(last.prompt_token_ids, ElementsAre(2, 3));
  EXPECT_THAT(last.output_token_ids, ElementsAre(7, 2));
}

TEST(RecordingTest, RefusesWhatItDidNotWrite) {
  for (const char* text : {"", "[]", "{}", R"({"requests": [{}]})", R"({"requests": [1]})",
                           R"({"requests": [{"arrival_s": 0, "first_token_s": 0, "token_s": 0,
                               "temperature": 0, "seed": 1, "windows": 1,
                               "prompt_token_ids": [1], "output_token_ids": []}]})"}) {
    EXPECT_EQ(ReadRecording(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace selfsame::bench
