// config.json, and after a zero byte generation_config.json.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "common/check.h"
#include "common/limits.h"
#include "common/model/config.h"
#include "common/model/rope.h"
#include "tests/fuzz/fuzz_directory.h"
#include "tests/unit/model/fake_ops.h"

namespace selfsame::fuzz {
namespace {

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 100;
  return config;
}

void CheckConfig(const ModelConfig& config) {
  SELFSAME_CHECK(config.vocab_size > 0 && config.vocab_size <= kMaxVocabSize);
  SELFSAME_CHECK(config.hidden_size > 0 && config.hidden_size <= kMaxModelWidth);
  SELFSAME_CHECK(config.layer_count > 0 && config.layer_count <= kMaxLayers);
  SELFSAME_CHECK(config.kv_head_count > 0 && config.head_count % config.kv_head_count == 0);
  SELFSAME_CHECK(config.head_dim > 0 && config.head_dim % 2 == 0 && config.head_dim <= kMaxHeadDim);
  SELFSAME_CHECK(config.max_position_embeddings > 0);
  SELFSAME_CHECK(config.rms_norm_epsilon > 0.0f && std::isfinite(config.rms_norm_epsilon));
  FakeOps ops;
  const auto rope = UploadRopeTable(config, 4, ops);
  SELFSAME_CHECK(rope.ok());
  const RopeTable table = RopeTableOf(**rope, config, 4);
  for (int64_t i = 0; i < 4 * config.head_dim / 2; ++i) {
    SELFSAME_CHECK(std::isfinite(table.cos[i]) && std::isfinite(table.sin[i]));
  }
}

void CheckDefaults(const GenerationDefaults& defaults, const ModelConfig& config) {
  for (size_t i = 0; i < defaults.eos_token_ids.size(); ++i) {
    const int32_t id = defaults.eos_token_ids[i];
    SELFSAME_CHECK(id >= 0 && id < config.vocab_size);
    SELFSAME_CHECK(i == 0 || id > defaults.eos_token_ids[i - 1]);
  }
  if (defaults.top_k) SELFSAME_CHECK(*defaults.top_k >= 0);
  if (defaults.temperature && *defaults.temperature != 0.0f) {
    SELFSAME_CHECK(*defaults.temperature >= kMinTemperature);
  }
  if (defaults.min_p) SELFSAME_CHECK(*defaults.min_p >= 0.0f && *defaults.min_p <= 1.0f);
  if (defaults.repetition_penalty) SELFSAME_CHECK(*defaults.repetition_penalty > 0.0f);
  if (defaults.top_p) SELFSAME_CHECK(*defaults.top_p > 0.0f && *defaults.top_p <= 1.0f);
}

void Test(std::string_view input) {
  static const FuzzDirectory& dir = *new FuzzDirectory;
  const auto [config_json, generation_json] = SplitAtZero(input);
  dir.Write("config.json", config_json);
  std::filesystem::remove(dir.path() + "/generation_config.json");
  if (!generation_json.empty()) dir.Write("generation_config.json", generation_json);
  const auto config = LoadModelConfig(dir.path());
  if (config.ok()) CheckConfig(*config);
  const ModelConfig used = config.ok() ? *config : SmallConfig();
  const auto defaults = LoadGenerationDefaults(dir.path(), used);
  if (defaults.ok()) CheckDefaults(*defaults, used);
}

}  // namespace
}  // namespace selfsame::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  selfsame::fuzz::Test(selfsame::fuzz::ToText(data, size));
  return 0;
}
