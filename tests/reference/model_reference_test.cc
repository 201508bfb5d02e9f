// Compares the forward pass with logits and greedy tokens that transformers computed in float32
// from the same bf16 weights (make_model_fixtures.py; its docstring gives the format of the
// fixtures).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/kv/sequence_state.h"
#include "common/model/model.h"
#include "kernels/cpu/cpu_ops.h"

namespace selfsame {
namespace {

constexpr char kDataDir[] = SELFSAME_SOURCE_DIR "/tests/data/";

struct Fixture {
  nlohmann::json json;
  std::string binary;

  template <typename T>
  std::vector<T> Read(size_t offset, size_t count) const {
    std::vector<T> values(count);
    EXPECT_LE(offset + count * sizeof(T), binary.size());
    std::copy_n(binary.data() + offset, count * sizeof(T), reinterpret_cast<char*>(values.data()));
    return values;
  }
};

Fixture ReadFixture(const std::string& name) {
  const std::string stem = kDataDir + ("reference/" + name);
  std::ifstream text(stem + ".json");
  EXPECT_TRUE(text.good()) << stem << ".json";
  std::ifstream binary(stem + ".bin", std::ios::binary);
  EXPECT_TRUE(binary.good()) << stem << ".bin";
  return {nlohmann::json::parse(text),
          std::string(std::istreambuf_iterator<char>(binary), std::istreambuf_iterator<char>())};
}

// The real model is too large to commit; SELFSAME_SMOLLM2_DIR names the directory that
// deploy/fetch_model.sh made, and adds it to what this binary compares.
constexpr char kRealModel[] = "smollm2";

std::string ModelDir(const Fixture& fixture) {
  const auto name = fixture.json.at("model").get<std::string>();
  const char* real_model_dir = std::getenv("SELFSAME_SMOLLM2_DIR");
  const bool is_real = name.find("SmolLM2") != std::string::npos;
  return is_real && real_model_dir != nullptr ? real_model_dir : kDataDir + name;
}

// Logits [rows, vocab] after the tokens at each of `rows`, from one prefill of `token_ids`.
std::vector<float> ComputeLogits(Model& model, const std::vector<int32_t>& token_ids,
                                 const std::vector<int32_t>& rows) {
  const auto row_count = static_cast<int32_t>(token_ids.size());
  auto kv = model.CreateKvCache(BlocksFor(row_count));
  EXPECT_TRUE(kv.ok()) << kv.status();
  std::vector<int32_t> block_table(static_cast<size_t>(BlocksFor(row_count)));
  std::iota(block_table.begin(), block_table.end(), 0);
  std::vector<int32_t> positions(token_ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const SequenceRows sequence{0, row_count, 0, block_table.data()};
  const Pass pass{row_count, token_ids, positions, {&sequence, 1}, rows};
  std::vector<SampleRow> sampling(rows.size());
  std::vector<SampledToken> sampled(rows.size());
  EXPECT_TRUE(model.Run(pass, **kv, sampling, sampled).ok());
  return model.CopyLogits(static_cast<int32_t>(rows.size()));
}

// How far our logits are from the reference ones, over the values the fixture keeps.
struct Difference {
  double max_abs = 0;
  double sum_of_squares = 0;
  int64_t count = 0;

  void Add(double ours, double reference) {
    const double difference = std::abs(ours - reference);
    max_abs = std::max(max_abs, difference);
    sum_of_squares += difference * difference;
    ++count;
  }
  double rms() const { return std::sqrt(sum_of_squares / static_cast<double>(count)); }
};

struct ReferenceParam {
  const char* fixture;
  Schedule schedule;
};

std::string ParamName(const ::testing::TestParamInfo<ReferenceParam>& info) {
  std::string name = info.param.fixture;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + (info.param.schedule == Schedule::kFast ? "_fast" : "_canonical");
}

class ModelReferenceTest : public ::testing::TestWithParam<ReferenceParam> {};

// bf16 activations cost accuracy. The fixture says how much they cost transformers; ours may cost
// the same, give or take rounding points.
constexpr double kAllowance = 2.0;

TEST_P(ModelReferenceTest, LogitsAndGreedyTokensAgreeWithTransformers) {
  const Fixture fixture = ReadFixture(GetParam().fixture);
  auto ops = CreateCpuOps({.schedule = GetParam().schedule, .thread_count = 2});
  ASSERT_TRUE(ops.ok()) << ops.status();
  const std::string model_dir = ModelDir(fixture);
  const auto config = LoadModelConfig(model_dir);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto context_limit =
      static_cast<int32_t>(std::min<int64_t>(1024, config->max_position_embeddings));
  auto model = Model::Load(
      model_dir, {.max_rows = 1024, .max_logit_rows = 128, .context_limit = context_limit},
      *std::move(ops));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto vocab_size = fixture.json.at("vocab_size").get<size_t>();
  const auto top_count = fixture.json.at("top_count").get<size_t>();
  ASSERT_EQ(vocab_size, static_cast<size_t>((*model)->config().vocab_size));

  for (const auto& test_case : fixture.json.at("cases")) {
    SCOPED_TRACE(test_case.at("name").get<std::string>());
    auto token_ids = test_case.at("prompt_token_ids").get<std::vector<int32_t>>();
    const auto greedy = test_case.at("greedy_token_ids").get<std::vector<int32_t>>();
    const auto rows = test_case.at("rows").get<std::vector<int32_t>>();
    const auto prompt_size = static_cast<int32_t>(token_ids.size());
    token_ids.insert(token_ids.end(), greedy.begin(), greedy.end() - 1);
    const std::vector<float> logits = ComputeLogits(**model, token_ids, rows);

    const size_t top_offset = test_case.at("top_offset").get<size_t>();
    const auto top_ids = fixture.Read<int32_t>(top_offset, rows.size() * top_count);
    const auto top_values =
        fixture.Read<float>(top_offset + top_ids.size() * sizeof(int32_t), rows.size() * top_count);
    const double max_allowed = kAllowance * test_case.at("bf16_max_abs_diff").get<double>();
    Difference difference;
    for (size_t r = 0; r < rows.size(); ++r) {
      const float* row = logits.data() + r * vocab_size;
      for (size_t i = r * top_count; i < (r + 1) * top_count; ++i) {
        difference.Add(row[top_ids[i]], top_values[i]);
      }
      const int32_t greedy_index = rows[r] - (prompt_size - 1);
      if (greedy_index < 0) continue;
      const auto best = static_cast<int32_t>(std::max_element(row, row + vocab_size) - row);
      const float margin = top_values[r * top_count] - top_values[r * top_count + 1];
      if (margin > max_allowed) {
        EXPECT_EQ(best, greedy[static_cast<size_t>(greedy_index)]) << "row " << rows[r];
      }
    }
    for (const auto& full_row : test_case.at("full_rows")) {
      const auto reference = fixture.Read<float>(full_row.at("offset").get<size_t>(), vocab_size);
      const auto position =
          std::find(rows.begin(), rows.end(), full_row.at("row").get<int32_t>()) - rows.begin();
      for (size_t v = 0; v < vocab_size; ++v) {
        difference.Add(logits[static_cast<size_t>(position) * vocab_size + v], reference[v]);
      }
    }
    EXPECT_LE(difference.max_abs, max_allowed);
    EXPECT_LE(difference.rms(), kAllowance * test_case.at("bf16_rms_diff").get<double>());
  }
}

std::vector<ReferenceParam> Params() {
  std::vector<const char*> fixtures = {"random-llama", "random-qwen3", "tiny-kjv"};
  if (std::getenv("SELFSAME_SMOLLM2_DIR") != nullptr) fixtures.push_back(kRealModel);
  std::vector<ReferenceParam> params;
  for (const char* fixture : fixtures) {
    params.push_back({fixture, Schedule::kFast});
    params.push_back({fixture, Schedule::kCanonical});
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Models, ModelReferenceTest, ::testing::ValuesIn(Params()), ParamName);

}  // namespace
}  // namespace selfsame
