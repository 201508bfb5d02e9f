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
constexpr int32_t kVocabSize = 4096;

TinyModelOptions Llama() {
  return {.vocab_size = kVocabSize,
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
          .vocab_size = kVocabSize,
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

// One sequence, in a cache of its own, so that passes of the same rows have the same buffers.
class Sequence {
 public:
  Sequence(Model& model, int32_t max_length)
      : model_(model), table_(static_cast<size_t>(BlocksFor(max_length))) {
    auto kv = model.CreateKvCache(BlocksFor(max_length));
    SELFSAME_CHECK(kv.ok());
    kv_ = *std::move(kv);
    std::iota(table_.begin(), table_.end(), 0);
  }

  // Runs `tokens` from `first_position` on in one pass; every row has logits and a SampleRow.
  std::vector<SampledToken> Run(std::span<const int32_t> tokens, int32_t first_position,
                                std::span<const SampleRow> sampling) {
    const auto count = static_cast<int32_t>(tokens.size());
    std::vector<int32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), first_position);
    const SequenceRows sequence = {.first_row = 0,
                                   .row_count = count,
                                   .first_position = first_position,
                                   .block_table = table_.data()};
    std::vector<SampledToken> sampled(tokens.size());
    const absl::Status status = model_.Run({.row_count = count,
                                            .token_ids = tokens,
                                            .positions = positions,
                                            .sequences = {&sequence, 1},
                                            .logit_rows = rows},
                                           *kv_, sampling, sampled);
    EXPECT_TRUE(status.ok()) << status;
    return sampled;
  }

  Model& model() { return model_; }

 private:
  Model& model_;
  std::unique_ptr<KvCache> kv_;
  std::vector<int32_t> table_;
};

// Logits of every row of one prefill.
std::vector<float> PrefillLogits(Sequence& sequence, int32_t length) {
  std::vector<int32_t> tokens;
  for (int32_t row = 0; row < length; ++row) tokens.push_back((row * 977 + 5) % kVocabSize);
  const std::vector<SampleRow> greedy(tokens.size());
  static_cast<void>(sequence.Run(tokens, 0, greedy));
  return sequence.model().CopyLogits(length);
}

std::vector<float> PrefillLogits(Model& model, int32_t length) {
  Sequence sequence(model, length);
  return PrefillLogits(sequence, length);
}

std::vector<int32_t> Prompt(int32_t length, int32_t step) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back(i * step % kVocabSize);
  return prompt;
}

// What a model says of a prompt and an answer to it, each row given what stands before it.
struct Replay {
  std::vector<int32_t> token_ids;  // one for each token of the answer
  std::vector<float> logprobs;     // of the prompt's tokens but the first, then of token_ids
  std::vector<float> logits;       // of all rows
};

// Runs them as a verifier does, in passes of `chunks` rows.
Replay RunChunks(Model& model, const std::vector<int32_t>& prompt, const Answer& answer,
                 const SampleRow& sampling, std::span<const int32_t> chunks) {
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), answer.token_ids.begin(), answer.token_ids.end() - 1);
  std::vector<SampleRow> params;
  for (int32_t next = 1; next <= static_cast<int32_t>(tokens.size()); ++next) {
    const auto place = static_cast<size_t>(next);
    params.push_back(place < prompt.size() ? SampleRow{.given_token = prompt[place]} : sampling);
    params.back().position = next;
  }
  Sequence sequence(model, static_cast<int32_t>(tokens.size()));
  Replay replay;
  size_t first = 0;
  for (const int32_t chunk : chunks) {
    const auto count = static_cast<size_t>(chunk);
    const auto sampled =
        sequence.Run(std::span(tokens).subspan(first, count), static_cast<int32_t>(first),
                     std::span(params).subspan(first, count));
    for (size_t i = 0; i < count; ++i) {
      replay.logprobs.push_back(sampled[i].logprob);
      if (first + i + 1 >= prompt.size()) replay.token_ids.push_back(sampled[i].token_id);
    }
    const std::vector<float> logits = model.CopyLogits(chunk);
    replay.logits.insert(replay.logits.end(), logits.begin(), logits.end());
    first += count;
  }
  EXPECT_EQ(first, tokens.size());
  return replay;
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

// Every row count that a matrix product may run at in a process of 384 rows, against single rows in
// a process of 8.
TEST_P(ModelTest, TheAnswerDoesNotDependOnTheRungsOfAProcessNorOnThoseThatRun) {
  const std::vector<int32_t> prompt = Prompt(617, 31);
  LoopParams params;
  params.sampling = {.temperature = 0.9f, .top_k = 50, .top_p = 0.95f, .seed = 5};
  params.max_tokens = 40;
  const auto small = Load("cuda", Schedule::kCanonical, 8);
  const auto large = Load("cuda", Schedule::kCanonical, 384);
  const Answer answer = RunCanonicalLoop(*small, prompt, params);
  ASSERT_EQ(answer.token_ids.size(), 40u);
  const std::vector<int32_t> ones(656, 1);
  const Replay expected = RunChunks(*small, prompt, answer, params.sampling, ones);
  EXPECT_EQ(expected.token_ids, answer.token_ids);
  EXPECT_EQ(CountDifferent(std::span(expected.logprobs).last(40), answer.logprobs), 0u);
  for (const std::vector<int32_t>& chunks : {std::vector<int32_t>{1, 8, 24, 200, 384, 39},
                                             {16, 32, 48, 64, 96, 128, 192, 80},
                                             {384, 130, 2, 140}}) {
    const Replay replay = RunChunks(*large, prompt, answer, params.sampling, chunks);
    EXPECT_EQ(replay.token_ids, answer.token_ids) << chunks[0];
    EXPECT_EQ(CountDifferent(replay.logprobs, expected.logprobs), 0u) << chunks[0];
    EXPECT_EQ(CountDifferent(replay.logits, expected.logits), 0u) << chunks[0];
  }
}

TEST_P(ModelTest, ReplayedPassesHaveTheBitsOfOthers) {
  const auto plain = Load("cuda", Schedule::kCanonical, 64, /*cuda_graphs=*/false);
  const auto graphs = Load("cuda", Schedule::kCanonical, 64);
  // An odd row count, which graphs round up. The first pass may be cut in two, where the
  // shape of attention becomes known; then one is enqueued, one captured, and one replayed.
  const std::vector<float> expected = PrefillLogits(*plain, 45);
  Sequence sequence(*graphs, 45);
  EXPECT_EQ(CountDifferent(PrefillLogits(sequence, 45), expected), 0u);
  const uint64_t before = graphs->ops().replay_count();
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(CountDifferent(PrefillLogits(sequence, 45), expected), 0u) << i;
    EXPECT_GE(graphs->ops().replay_count() - before, i) << "nothing was replayed";
  }
  // Shapes that come again with other contents.
  const std::vector<int32_t> prompt = Prompt(500, 37);
  LoopParams params;
  params.sampling = {.temperature = 0.8f, .top_p = 0.9f, .seed = 3};
  params.max_tokens = 40;
  const uint64_t before_loop = graphs->ops().replay_count();
  const Answer first = RunCanonicalLoop(*plain, prompt, params);
  const Answer second = RunCanonicalLoop(*graphs, prompt, params);
  EXPECT_EQ(first.token_ids, second.token_ids);
  EXPECT_EQ(CountDifferent(first.logprobs, second.logprobs), 0u);
  EXPECT_GT(graphs->ops().replay_count() - before_loop, 500u) << "of 539 passes";
  EXPECT_EQ(plain->ops().replay_count(), 0u);
}

TEST_P(ModelTest, AReplayedFastPassRepeatsItself) {
  const auto model = Load("cuda", Schedule::kFast, 64);
  Sequence sequence(*model, 45);
  const std::vector<float> expected = PrefillLogits(sequence, 45);
  const uint64_t before = model->ops().replay_count();
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(CountDifferent(PrefillLogits(sequence, 45), expected), 0u) << i;
    EXPECT_GE(model->ops().replay_count() - before, i) << "nothing was replayed";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ModelTest, ::testing::Values(Llama(), Qwen3()),
                         [](const auto& param_info) {
                           return param_info.param.is_qwen3 ? "Qwen3" : "Llama";
                         });

}  // namespace
}  // namespace selfsame::testing
