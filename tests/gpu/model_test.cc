// The whole forward pass on the device, with random models in the shape of real ones.

#include "common/model/model.h"

#include <numeric>
#include <string>

#include "common/canonical/rungs.h"
#include "common/canonical/self_test.h"
#include "common/kv/sequence_state.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/testing/canonical_loop.h"
#include "tests/testing/tiny_model.h"

namespace selfsame::testing {
namespace {

constexpr int32_t kContextLimit = 1536;

TinyModelOptions Llama() {
  return {.vocab_size = 4096,
          .hidden_size = 576,
          .intermediate_size = 1536,
          .layer_count = 3,
          .head_count = 9,
          .kv_head_count = 3,
          .head_dim = 64};
}

TinyModelOptions Qwen3() {
  return {.is_qwen3 = true,
          .tie_word_embeddings = true,
          .attention_bias = true,
          .vocab_size = 4096,
          .hidden_size = 512,
          .intermediate_size = 1408,
          .layer_count = 3,
          .head_count = 8,
          .kv_head_count = 2,
          .head_dim = 128};
}

class ModelTest : public ::testing::TestWithParam<TinyModelOptions> {
 protected:
  ModelTest() { WriteTinyModel(dir_.path(), GetParam()); }

  std::unique_ptr<Model> Load(const std::string& device, Schedule schedule, int32_t max_rows,
                              bool cuda_graphs = true) {
    const PassLimits limits = {
        .max_rows = max_rows, .max_logit_rows = max_rows, .context_limit = kContextLimit};
    auto ops = CreateOps({.device = device,
                          .schedule = schedule,
                          .max_rows = max_rows,
                          .max_logit_rows = max_rows,
                          .cuda_graphs = cuda_graphs});
    SELFSAME_CHECK(ops.ok());
    auto model = Model::Load(dir_.path(), limits, *std::move(ops));
    if (!model.ok()) ADD_FAILURE() << model.status();
    SELFSAME_CHECK(model.ok());
    return *std::move(model);
  }

  TempDir dir_;
};

// Logits of every row of one prefill.
std::vector<float> PrefillLogits(Model& model, int32_t length) {
  auto kv = model.CreateKvCache(BlocksFor(length));
  SELFSAME_CHECK(kv.ok());
  std::vector<int32_t> table(static_cast<size_t>(BlocksFor(length)));
  std::iota(table.begin(), table.end(), 0);
  std::vector<int32_t> rows(static_cast<size_t>(length));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<int32_t> tokens;
  for (const int32_t row : rows) tokens.push_back((row * 977 + 5) % 4096);
  const SequenceRows sequence = {
      .first_row = 0, .row_count = length, .first_position = 0, .block_table = table.data()};
  const std::vector<SampleRow> greedy(rows.size());
  std::vector<SampledToken> sampled(rows.size());
  const absl::Status status = model.Run({.row_count = length,
                                         .token_ids = tokens,
                                         .positions = rows,
                                         .sequences = {&sequence, 1},
                                         .logit_rows = rows},
                                        **kv, greedy, sampled);
  EXPECT_TRUE(status.ok()) << status;
  return model.CopyLogits(length);
}

TEST_P(ModelTest, LogitsAgreeWithTheCpuBackend) {
  const int32_t length = 45;
  const auto cpu = Load("cpu", Schedule::kCanonical, 64);
  const auto expected = PrefillLogits(*cpu, length);
  const std::vector<double> reference(expected.begin(), expected.end());
  for (const Schedule schedule : {Schedule::kCanonical, Schedule::kFast}) {
    const auto cuda = Load("cuda", schedule, 64);
    const auto logits = PrefillLogits(*cuda, length);
    EXPECT_LT(RelativeError(std::vector<double>(logits.begin(), logits.end()), reference), 3e-2);
  }
}

TEST_P(ModelTest, TheVerifiersSelfTestPassesAtEveryRung) {
  const auto model = Load("cuda", Schedule::kCanonical, 512);
  const auto rungs = DefaultRungs(512);
  const auto report = RunSelfTest(*model, rungs);
  ASSERT_TRUE(report.ok()) << report.status();
  for (const std::string& failure : report->failures) ADD_FAILURE() << failure;
  EXPECT_EQ(report->rungs, rungs);
}

// The control: the same test finds the fast schedule out, where the shape is large enough for the
// fastest algorithms to split K.
TEST(ModelControlTest, TheSelfTestFindsTheFastScheduleOut) {
  TempDir dir;
  WriteTinyModel(dir.path(), {.vocab_size = 512,
                              .hidden_size = 2048,
                              .intermediate_size = 8192,
                              .layer_count = 1,
                              .head_count = 16,
                              .kv_head_count = 8,
                              .head_dim = 128});
  const PassLimits limits = {
      .max_rows = 512, .max_logit_rows = 512, .context_limit = kContextLimit};
  for (const Schedule schedule : {Schedule::kFast, Schedule::kCanonical}) {
    auto ops = CreateOps({.device = "cuda",
                          .schedule = schedule,
                          .max_rows = 512,
                          .max_logit_rows = 512,
                          .class_slack = 0.0});
    ASSERT_TRUE(ops.ok()) << ops.status();
    auto model = Model::Load(dir.path(), limits, *std::move(ops));
    ASSERT_TRUE(model.ok()) << model.status();
    const auto report = RunSelfTest(**model, DefaultRungs(512));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->failures.empty(), schedule == Schedule::kCanonical);
  }
}

TEST_P(ModelTest, TheAnswerDoesNotDependOnTheRungsAProcessIsSetUpFor) {
  std::vector<int32_t> prompt(600);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 31 % 4096);
  LoopParams params;
  params.sampling = {.temperature = 0.9f, .top_k = 50, .top_p = 0.95f, .seed = 5};
  params.max_tokens = 40;
  const auto small = Load("cuda", Schedule::kCanonical, 8);
  const auto large = Load("cuda", Schedule::kCanonical, 384);
  const Answer first = RunCanonicalLoop(*small, prompt, params);
  const Answer second = RunCanonicalLoop(*large, prompt, params);
  EXPECT_EQ(first.token_ids, second.token_ids);
  EXPECT_EQ(CountDifferent(first.logprobs, second.logprobs), 0u);
  EXPECT_FALSE(first.token_ids.empty());
}

TEST_P(ModelTest, ReplayedPassesHaveTheBitsOfOthers) {
  const auto plain = Load("cuda", Schedule::kCanonical, 64, /*cuda_graphs=*/false);
  const auto graphs = Load("cuda", Schedule::kCanonical, 64);
  // An odd row count, which graphs round up; first enqueued, then captured, then replayed.
  const std::vector<float> expected = PrefillLogits(*plain, 45);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(CountDifferent(PrefillLogits(*graphs, 45), expected), 0u) << i;
  }
  // Shapes that come again with other contents.
  std::vector<int32_t> prompt(500);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 37 % 4096);
  LoopParams params;
  params.sampling = {.temperature = 0.8f, .top_p = 0.9f, .seed = 3};
  params.max_tokens = 40;
  const Answer first = RunCanonicalLoop(*plain, prompt, params);
  const Answer second = RunCanonicalLoop(*graphs, prompt, params);
  EXPECT_EQ(first.token_ids, second.token_ids);
  EXPECT_EQ(CountDifferent(first.logprobs, second.logprobs), 0u);
}

TEST_P(ModelTest, AReplayedFastPassRepeatsItself) {
  const auto model = Load("cuda", Schedule::kFast, 64);
  const std::vector<float> expected = PrefillLogits(*model, 45);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(CountDifferent(PrefillLogits(*model, 45), expected), 0u) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ModelTest, ::testing::Values(Llama(), Qwen3()),
                         [](const auto& param_info) {
                           return param_info.param.is_qwen3 ? "Qwen3" : "Llama";
                         });

}  // namespace
}  // namespace selfsame::testing
