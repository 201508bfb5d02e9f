#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame {

enum class Architecture { kLlama, kQwen3 };

// "rope_scaling" of type llama3: low frequencies are divided by `factor`, with a smooth passage.
struct Llama3RopeScaling {
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 1.0;
  int64_t original_max_position_embeddings = 0;
};

// What config.json says, checked: every count is positive, heads divide, sizes are within limits.
struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layer_count = 0;
  int64_t head_count = 0;
  int64_t kv_head_count = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  float rms_norm_epsilon = 1e-5f;
  double rope_theta = 10000.0;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // q, k, v have biases
  bool output_bias = false;     // o has a bias
  bool mlp_bias = false;
  bool has_qk_norm = false;  // Qwen3

  AttentionShape attention_shape() const {
    return {.head_count = static_cast<int32_t>(head_count),
            .kv_head_count = static_cast<int32_t>(kv_head_count),
            .head_dim = static_cast<int32_t>(head_dim)};
  }
};

// generation_config.json: what a request that sets nothing gets. Fields the file leaves out are
// empty.
struct GenerationDefaults {
  std::vector<int32_t> eos_token_ids;  // sorted, distinct; may be empty
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
};

// Reads DIR/config.json. Missing file, malformed JSON, unsupported architecture, activation or RoPE
// type, or a value out of range: one FAILED_PRECONDITION that names the file and the field.
absl::StatusOr<ModelConfig> LoadModelConfig(std::string_view model_dir);

// Reads DIR/generation_config.json, or, where it is missing, the end-of-sequence ids of
// config.json.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(std::string_view model_dir,
                                                          const ModelConfig& config);

}  // namespace selfsame
