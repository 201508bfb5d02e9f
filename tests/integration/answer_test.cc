// The answer is that of a plain canonical loop, however windows are cut and passes are packed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"
#include "tests/testing/canonical_loop.h"

namespace selfsame::testing {
namespace {

constexpr int kRequests = 6;
constexpr int kMaxTokens = 48;

std::unique_ptr<Model> LoadCanonicalModel(const std::string& model_dir) {
  auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 2});
  EXPECT_TRUE(ops.ok()) << ops.status();
  auto model = Model::Load(
      model_dir, {.max_rows = 1, .max_logit_rows = 1, .context_limit = NearTieModel::kContextLimit},
      *std::move(ops));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

Answer RunLoop(Model& model, const v1::GenerateRequest& request) {
  LoopParams params;
  params.sampling.temperature = request.sampling().temperature();
  params.sampling.top_k = request.sampling().top_k();
  params.sampling.top_p = request.sampling().has_top_p() ? request.sampling().top_p() : 1.0f;
  params.sampling.seed = request.sampling().seed();
  params.max_tokens = request.stop().max_tokens();
  if (!request.stop().ignore_eos()) params.stop_token_ids = {NearTieModel::kEosTokenId};
  const auto& ids = request.prompt_token_ids().ids();
  return RunCanonicalLoop(model, {ids.begin(), ids.end()}, params);
}

void ExpectIsAnswer(const GenerateResult& result, const Answer& answer, int index) {
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.token_ids, answer.token_ids) << "request " << index;
  std::vector<uint32_t> bits;
  for (const float logprob : answer.logprobs) bits.push_back(std::bit_cast<uint32_t>(logprob));
  EXPECT_EQ(result.logprob_bits, bits) << "request " << index;
}

struct Shape {
  int window_size;
  int verify_batch_size;
  int max_inflight_windows;
};

class AnswerTest : public ::testing::TestWithParam<Shape> {};

// Each shape is a restart of both services too.
TEST_P(AnswerTest, EqualsThePlainCanonicalLoop) {
  const NearTieModel model_dir;
  const Shape shape = GetParam();
  const std::string window_flag = absl::StrCat("--window_size=", shape.window_size);
  auto cluster = Cluster::Start(
      {.model_dir = model_dir.path(),
       .decoder_flags = {window_flag,
                         absl::StrCat("--max_inflight_windows=", shape.max_inflight_windows)},
       .verifier_flags = {window_flag,
                          absl::StrCat("--verify_batch_size=", shape.verify_batch_size)},
       .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto requests = MakeRequests(kRequests, kMaxTokens);
  const auto results =
      ServeAll((*cluster)->client(), requests, ArrivalOrder(kRequests, 3), kRequests);
  const auto model = LoadCanonicalModel(model_dir.path());
  int rollbacks = 0;
  for (int i = 0; i < kRequests; ++i) {
    ExpectIsAnswer(results[i], RunLoop(*model, requests[i]), i);
    ASSERT_TRUE(results[i].complete.has_value());
    rollbacks += results[i].complete->rollbacks();
  }
  EXPECT_GT(rollbacks, 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AnswerTest,
                         ::testing::Values(Shape{1, 1, 4}, Shape{7, 4, 1}, Shape{16, 8, 2},
                                           Shape{64, 8, 4}, Shape{64, 1, 8}),
                         [](const auto& info) {
                           return absl::StrCat("Window", info.param.window_size, "Batch",
                                               info.param.verify_batch_size, "Inflight",
                                               info.param.max_inflight_windows);
                         });

// Stop strings are matched on committed text, wherever windows are cut.
TEST(StopStringTest, EndsTheTextAtTheEarliestMatchAcrossWindows) {
  const NearTieModel model_dir;
  auto cluster = Cluster::Start({.model_dir = model_dir.path(),
                                 .decoder_flags = {"--window_size=2"},
                                 .verifier_flags = {"--window_size=2"},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  TestClient& client = (*cluster)->client();
  for (const v1::GenerateRequest& request : MakeRequests(4, kMaxTokens)) {
    const GenerateResult whole = client.Generate(request);
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    ASSERT_GT(whole.text.size(), 20u);
    // A string from the middle of the answer, longer than any token of this tokeniser.
    size_t begin = whole.text.size() / 2;
    while ((whole.text[begin] & 0xc0) == 0x80) ++begin;
    size_t end = begin + 4;
    while (end < whole.text.size() && (whole.text[end] & 0xc0) == 0x80) ++end;
    const std::string stop = whole.text.substr(begin, end - begin);
    v1::GenerateRequest stopped = request;
    stopped.mutable_stop()->add_stop(stop);
    const GenerateResult result = client.Generate(stopped);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.violation, "");
    EXPECT_EQ(result.text, whole.text.substr(0, whole.text.find(stop)));
    EXPECT_EQ(result.complete->finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(result.complete->stop_string(), stop);
    ASSERT_LE(result.token_ids.size(), whole.token_ids.size());
    EXPECT_TRUE(
        std::equal(result.token_ids.begin(), result.token_ids.end(), whole.token_ids.begin()));
    EXPECT_EQ(result.complete->output_tokens(), static_cast<int>(result.token_ids.size()));
    EXPECT_TRUE(IsSameAnswer(client.Generate(stopped), result));
  }
}

}  // namespace
}  // namespace selfsame::testing
