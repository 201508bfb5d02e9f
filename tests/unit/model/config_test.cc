#include "common/model/config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/model/model_directory.h"

namespace selfsame {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What Llama-3.2-1B's config.json says, in the form transformers 4 writes.
Json LlamaConfig() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128009, 128001, 128008], "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})");
}

Json Qwen3Config() {
  return Json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
}

class ModelConfigTest : public ::testing::Test {
 protected:
  absl::StatusOr<ModelConfig> Load(const Json& json) { return LoadText(json.dump()); }
  absl::StatusOr<ModelConfig> LoadText(const std::string& text) {
    directory_.Write("config.json", text);
    return LoadModelConfig(directory_.path());
  }
  absl::StatusOr<GenerationDefaults> LoadDefaults(const std::string& generation_config) {
    directory_.Write("config.json", LlamaConfig().dump());
    directory_.Write("generation_config.json", generation_config);
    const auto config = LoadModelConfig(directory_.path());
    EXPECT_TRUE(config.ok());
    return LoadGenerationDefaults(directory_.path(), *config);
  }
  void ExpectError(const Json& json, const std::string& field, const std::string& message) {
    const auto config = Load(json);
    ASSERT_FALSE(config.ok()) << "expected an error about " << field;
    EXPECT_EQ(config.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(config.status().message()),
                AllOf(HasSubstr(directory_.File("config.json")), HasSubstr(field + ": "),
                      HasSubstr(message)));
  }

  TempDirectory directory_;
};

TEST_F(ModelConfigTest, ReadsLlamaWithScaledRope) {
  const auto config = Load(LlamaConfig());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kLlama);
  EXPECT_EQ(config->vocab_size, 128256);
  EXPECT_EQ(config->hidden_size, 2048);
  EXPECT_EQ(config->intermediate_size, 8192);
  EXPECT_EQ(config->layer_count, 16);
  EXPECT_EQ(config->head_count, 32);
  EXPECT_EQ(config->kv_head_count, 8);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_FLOAT_EQ(config->rms_norm_epsilon, 1e-5f);
  EXPECT_EQ(config->rope_theta, 500000.0);
  ASSERT_TRUE(config->rope_scaling.has_value());
  EXPECT_EQ(config->rope_scaling->factor, 32.0);
  EXPECT_EQ(config->rope_scaling->low_freq_factor, 1.0);
  EXPECT_EQ(config->rope_scaling->high_freq_factor, 4.0);
  EXPECT_EQ(config->rope_scaling->original_max_position_embeddings, 8192);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->attention_bias);
  EXPECT_FALSE(config->output_bias);
  EXPECT_FALSE(config->mlp_bias);
  EXPECT_FALSE(config->has_qk_norm);
}

TEST_F(ModelConfigTest, ReadsQwen3) {
  const auto config = Load(Qwen3Config());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kQwen3);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->rope_theta, 1e6);
  EXPECT_FALSE(config->rope_scaling.has_value());
  EXPECT_TRUE(config->has_qk_norm);
  EXPECT_FLOAT_EQ(config->rms_norm_epsilon, 1e-6f);
}

TEST_F(ModelConfigTest, ReadsRopeParametersAsTransformers5WritesThem) {
  Json json = LlamaConfig();
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_theta"] = json["rope_theta"];
  json["dtype"] = json["torch_dtype"];
  for (const char* name : {"rope_scaling", "rope_theta", "torch_dtype"}) json.erase(name);
  const auto config = Load(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_theta, 500000.0);
  ASSERT_TRUE(config->rope_scaling.has_value());
  EXPECT_EQ(config->rope_scaling->factor, 32.0);
}

TEST_F(ModelConfigTest, FillsInWhatTheArchitectureDefaults) {
  Json json = LlamaConfig();
  for (const char* name : {"head_dim", "num_key_value_heads", "rope_scaling", "rope_theta",
                           "tie_word_embeddings", "rms_norm_eps", "attention_bias", "mlp_bias"}) {
    json.erase(name);
  }
  auto config = Load(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->kv_head_count, 32);
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_FLOAT_EQ(config->rms_norm_epsilon, 1e-6f);

  json = Qwen3Config();
  json["head_dim"] = nullptr;
  config = Load(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 128);
}

TEST_F(ModelConfigTest, AttentionBiasCoversTheOutputProjectionToo) {
  Json json = LlamaConfig();
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  const auto config = Load(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->attention_bias);
  EXPECT_TRUE(config->output_bias);
  EXPECT_TRUE(config->mlp_bias);
}

TEST_F(ModelConfigTest, NamesFileOnMissingOrMalformedJson) {
  auto config = LoadModelConfig(directory_.path());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr(directory_.File("config.json")), HasSubstr("No such file")));
  const std::string nested = std::string(500000, '[') + std::string(500000, ']');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[1]"), std::string("{\"a\": \xff}"),
        LlamaConfig().dump().substr(0, 300), nested}) {
    config = LoadText(text);
    ASSERT_FALSE(config.ok()) << text.substr(0, 40);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(std::string(LoadText(std::string(2 << 20, ' ')).status().message()),
              HasSubstr("the limit is"));
}

TEST_F(ModelConfigTest, DirectoryThatIsMissingIsAnError) {
  const auto config = LoadModelConfig(directory_.File("nowhere"));
  EXPECT_EQ(config.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ModelConfigTest, RejectsWhatTheForwardPassCannotDo) {
  const struct {
    const char* field;
    const char* value;
    const char* message;
  } cases[] = {
      {"architectures", R"(["MistralForCausalLM"])", "MistralForCausalLM"},
      {"architectures", R"(["LlamaForCausalLM", "X"])", "one string"},
      {"architectures", "null", "missing"},
      {"hidden_act", R"("gelu")", "gelu"},
      {"hidden_act", "1", "not a string"},
      {"quantization_config", R"({"quant_method": "fp8"})", "not supported"},
      {"num_local_experts", "8", "not supported"},
      {"sliding_window", "4096", "not supported"},
      {"use_sliding_window", "true", "not supported"},
      {"layer_types", R"(["full_attention", "sliding_attention"])", "full_attention"},
      {"partial_rotary_factor", "0.5", "not supported"},
      {"rope_scaling", "3", "not an object"},
      {"rope_scaling.rope_type", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})",
       "yarn"},
      {"rope_scaling.type", R"({"rope_scaling": {"type": "linear", "factor": 4.0}})", "linear"},
      {"rope_scaling.rope_type", R"({"rope_scaling": {"factor": 4.0}})", "missing"},
      {"rope_parameters.rope_type",
       R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})", "missing"},
      {"rope_scaling.factor", R"({"rope_scaling": {"rope_type": "llama3"}})", "missing"},
      {"rope_scaling.high_freq_factor",
       R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
           "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
       "greater than"},
  };
  for (const auto& test : cases) {
    Json json = LlamaConfig();
    const Json value = Json::parse(test.value);
    if (std::string(test.field).find('.') == std::string::npos) {
      json[test.field] = value;
    } else {
      json.update(value);
    }
    ExpectError(json, test.field, test.message);
  }
}

TEST_F(ModelConfigTest, RejectsSizesOutOfRange) {
  const struct {
    const char* field;
    const char* value;
  } cases[] = {
      {"vocab_size", "0"},
      {"vocab_size", "-5"},
      {"vocab_size", "1e5"},
      {"vocab_size", "\"128256\""},
      {"vocab_size", "18446744073709551615"},
      {"hidden_size", "null"},
      {"hidden_size", "100000000"},
      {"intermediate_size", "0"},
      {"num_hidden_layers", "1000000"},
      {"num_attention_heads", "0"},
      {"num_key_value_heads", "5"},
      {"num_key_value_heads", "33"},
      {"head_dim", "63"},
      {"head_dim", "4096"},
      {"max_position_embeddings", "0"},
      {"rms_norm_eps", "0"},
      {"rms_norm_eps", "-1e-5"},
      {"rms_norm_eps", "\"tiny\""},
      {"rope_theta", "0"},
      {"tie_word_embeddings", "1"},
  };
  for (const auto& test : cases) {
    Json json = LlamaConfig();
    json[test.field] = Json::parse(test.value);
    ExpectError(json, test.field, "");
  }
  Json json = LlamaConfig();
  json.erase("head_dim");
  json["num_attention_heads"] = 24;
  ExpectError(json, "num_attention_heads", "must divide hidden_size");
}

TEST_F(ModelConfigTest, ReadsGenerationDefaults) {
  const auto defaults = LoadDefaults(R"({"bos_token_id": 128000, "do_sample": true,
      "eos_token_id": [128009, 128001, 128008, 128001], "temperature": 0.6, "top_k": 20,
      "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1,
      "transformers_version": "4.45.0.dev0"})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(defaults->temperature, 0.6f);
  EXPECT_EQ(defaults->top_k, 20);
  EXPECT_EQ(defaults->top_p, 0.9f);
  EXPECT_EQ(defaults->min_p, 0.05f);
  EXPECT_EQ(defaults->repetition_penalty, 1.1f);
}

TEST_F(ModelConfigTest, GreedyGenerationDefaultsDropSamplingFields) {
  const auto defaults =
      LoadDefaults(R"({"do_sample": false, "eos_token_id": 7, "temperature": 0.6, "top_k": 1})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(7));
  EXPECT_FALSE(defaults->temperature.has_value());
  EXPECT_FALSE(defaults->top_k.has_value());
}

TEST_F(ModelConfigTest, EosComesFromConfigWhereGenerationConfigHasNone) {
  directory_.Write("config.json", LlamaConfig().dump());
  const auto config = LoadModelConfig(directory_.path());
  ASSERT_TRUE(config.ok());
  auto defaults = LoadGenerationDefaults(directory_.path(), *config);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(128001, 128008, 128009));

  defaults = LoadDefaults(R"({"temperature": 0.5})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(defaults->temperature, 0.5f);

  Json json = LlamaConfig();
  json.erase("eos_token_id");
  directory_.Write("config.json", json.dump());
  directory_.Write("generation_config.json", "{}");
  defaults = LoadGenerationDefaults(directory_.path(), *config);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_token_ids, IsEmpty());
}

TEST_F(ModelConfigTest, RejectsBadGenerationDefaults) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  for (const std::string& text :
       {std::string("{"), std::string(R"({"eos_token_id": 128256})"),
        std::string(R"({"eos_token_id": [1, -2]})"), std::string(R"({"eos_token_id": "x"})"),
        R"({"eos_token_id": )" + deep + "}", std::string(R"({"temperature": -1})"),
        std::string(R"({"temperature": "hot"})"), std::string(R"({"top_p": 0})"),
        std::string(R"({"top_p": 1.5})"), std::string(R"({"top_k": -2})"),
        std::string(R"({"top_k": 1.5})"), std::string(R"({"do_sample": 1})"),
        std::string(R"({"temperature": 1e-6})"), std::string(R"({"min_p": 1.5})"),
        std::string(R"({"repetition_penalty": 0})")}) {
    const auto defaults = LoadDefaults(text);
    ASSERT_FALSE(defaults.ok()) << text.substr(0, 60);
    EXPECT_EQ(defaults.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(defaults.status().message()), HasSubstr("generation_config.json"));
  }
}

// The configurations of the committed models, as transformers wrote them.
TEST_F(ModelConfigTest, ReadsTheCommittedModels) {
  const std::string data = std::string(SELFSAME_SOURCE_DIR) + "/tests/data/";
  const auto llama = LoadModelConfig(data + "random-llama");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_TRUE(llama->rope_scaling.has_value());
  EXPECT_TRUE(llama->attention_bias);
  EXPECT_TRUE(llama->mlp_bias);
  EXPECT_FALSE(llama->tie_word_embeddings);
  const auto qwen3 = LoadModelConfig(data + "random-qwen3");
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_TRUE(qwen3->has_qk_norm);
  EXPECT_TRUE(qwen3->tie_word_embeddings);
}

}  // namespace
}  // namespace selfsame
