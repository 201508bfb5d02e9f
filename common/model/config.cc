#include "common/model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/file.h"
#include "common/limits.h"
#include "nlohmann/json.hpp"

namespace selfsame {
namespace {

using Json = nlohmann::json;

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// A JSON object of a file. Absent and null fields are the same. Every error names file and field.
class Fields {
 public:
  // `prefix` is what stands before a field's name in messages: "" or "rope_scaling.".
  Fields(std::string path, std::string prefix, const Json& object)
      : path_(std::move(path)), prefix_(std::move(prefix)), object_(&object) {}

  bool Has(const char* name) const { return Find(name) != nullptr; }

  const Json* Find(const char* name) const {
    const auto found = object_->find(name);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
  }

  absl::Status Error(std::string_view name, std::string_view message) const {
    return FileError(path_, absl::StrCat(prefix_, ToAbsl(name), ": ", ToAbsl(message)));
  }

  absl::StatusOr<int64_t> Integer(const char* name, int64_t min, int64_t max) const {
    const Json* value = Find(name);
    if (value == nullptr) return Error(name, "is missing");
    if (!value->is_number_integer()) return Error(name, "is not an integer");
    // An unsigned value beyond int64 would wrap to a negative one; it is above every `max`.
    const bool is_huge = value->is_number_unsigned() &&
                         value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
    const int64_t number = is_huge ? std::numeric_limits<int64_t>::max() : value->get<int64_t>();
    if (number < min || number > max) {
      return Error(name, absl::StrCat("is ", value->dump(), "; must be ", min, " to ", max));
    }
    return number;
  }

  absl::StatusOr<int64_t> IntegerOr(const char* name, int64_t fallback, int64_t min,
                                    int64_t max) const {
    if (!Has(name)) return fallback;
    return Integer(name, min, max);
  }

  // A number in [min, max].
  absl::StatusOr<double> Number(const char* name, double min, double max) const {
    const Json* value = Find(name);
    if (value == nullptr) return Error(name, "is missing");
    if (!value->is_number()) return Error(name, "is not a number");
    const double number = value->get<double>();
    if (!(number >= min && number <= max)) {
      return Error(name, absl::StrCat("is ", value->dump(), "; must be ", min, " to ", max));
    }
    return number;
  }

  absl::StatusOr<double> NumberOr(const char* name, double fallback, double min, double max) const {
    if (!Has(name)) return fallback;
    return Number(name, min, max);
  }

  absl::StatusOr<bool> BoolOr(const char* name, bool fallback) const {
    const Json* value = Find(name);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) return Error(name, "is not true or false");
    return value->get<bool>();
  }

  absl::StatusOr<std::string> StringOr(const char* name, std::string fallback) const {
    const Json* value = Find(name);
    if (value == nullptr) return fallback;
    if (!value->is_string()) return Error(name, "is not a string");
    return value->get<std::string>();
  }

  // The object under `name`; REQUIRES Has(name).
  absl::StatusOr<Fields> Object(const char* name) const {
    const Json* value = Find(name);
    if (!value->is_object()) return Error(name, "is not an object");
    return Fields(path_, absl::StrCat(prefix_, name, "."), *value);
  }

 private:
  std::string path_;
  std::string prefix_;
  const Json* object_;
};

absl::StatusOr<Json> ReadJsonObject(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
  Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return FileError(path, "is not valid JSON");
  if (!json.is_object()) return FileError(path, "is not a JSON object");
  return json;
}

absl::StatusOr<Architecture> ReadArchitecture(const Fields& fields) {
  const Json* names = fields.Find("architectures");
  if (names == nullptr) return fields.Error("architectures", "is missing");
  if (!names->is_array() || names->size() != 1 || !names->front().is_string()) {
    return fields.Error("architectures", "is not a list of one string");
  }
  const std::string name = names->front().get<std::string>();
  if (name == "LlamaForCausalLM") return Architecture::kLlama;
  if (name == "Qwen3ForCausalLM") return Architecture::kQwen3;
  return fields.Error("architectures",
                      absl::StrCat("'", name,
                                   "' is not supported; supported are LlamaForCausalLM and "
                                   "Qwen3ForCausalLM"));
}

// Features that change the forward pass and that it does not have.
absl::Status RejectUnsupported(const Fields& fields) {
  ASSIGN_OR_RETURN(const std::string activation, fields.StringOr("hidden_act", "silu"));
  if (activation != "silu") {
    return fields.Error("hidden_act",
                        absl::StrCat("'", activation, "' is not supported; only silu is"));
  }
  if (fields.Has("quantization_config")) {
    return fields.Error("quantization_config", "quantised weights are not supported");
  }
  for (const char* name : {"num_experts", "num_local_experts"}) {
    if (!fields.Has(name)) continue;
    ASSIGN_OR_RETURN(const int64_t count,
                     fields.Integer(name, 0, std::numeric_limits<int32_t>::max()));
    if (count > 0) return fields.Error(name, "mixtures of experts are not supported");
  }
  // Configurations carry a "sliding_window" that "use_sliding_window" switches off.
  ASSIGN_OR_RETURN(const bool is_sliding,
                   fields.BoolOr("use_sliding_window", fields.Has("sliding_window")));
  if (is_sliding) {
    return fields.Error(fields.Has("use_sliding_window") ? "use_sliding_window" : "sliding_window",
                        "sliding-window attention is not supported");
  }
  if (const Json* types = fields.Find("layer_types"); types != nullptr) {
    if (!types->is_array()) return fields.Error("layer_types", "is not a list");
    for (const Json& type : *types) {
      if (type != "full_attention") {
        return fields.Error("layer_types", "only full_attention is supported");
      }
    }
  }
  ASSIGN_OR_RETURN(const double rotary_share,
                   fields.NumberOr("partial_rotary_factor", 1.0, 0.0, 1.0));
  if (rotary_share != 1.0) {
    return fields.Error("partial_rotary_factor", "partial rotation is not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const Fields& fields, ModelConfig& config) {
  const bool is_qwen3 = config.architecture == Architecture::kQwen3;
  ASSIGN_OR_RETURN(config.vocab_size, fields.Integer("vocab_size", 1, kMaxVocabSize));
  ASSIGN_OR_RETURN(config.hidden_size, fields.Integer("hidden_size", 1, kMaxModelWidth));
  ASSIGN_OR_RETURN(config.intermediate_size,
                   fields.Integer("intermediate_size", 1, kMaxModelWidth));
  ASSIGN_OR_RETURN(config.layer_count, fields.Integer("num_hidden_layers", 1, kMaxLayers));
  ASSIGN_OR_RETURN(config.head_count, fields.Integer("num_attention_heads", 1, kMaxHeads));
  ASSIGN_OR_RETURN(config.kv_head_count, fields.IntegerOr("num_key_value_heads", config.head_count,
                                                          1, config.head_count));
  if (config.head_count % config.kv_head_count != 0) {
    return fields.Error(
        "num_key_value_heads",
        absl::StrCat("is ", config.kv_head_count, "; must divide num_attention_heads, which is ",
                     config.head_count));
  }
  ASSIGN_OR_RETURN(config.max_position_embeddings,
                   fields.Integer("max_position_embeddings", 1, kMaxPositions));

  if (!fields.Has("head_dim") && !is_qwen3 && config.hidden_size % config.head_count != 0) {
    return fields.Error("num_attention_heads",
                        absl::StrCat("is ", config.head_count,
                                     "; must divide hidden_size, which is ", config.hidden_size));
  }
  // Where head_dim is left out, each architecture has its own default.
  const int64_t default_head_dim = is_qwen3 ? 128 : config.hidden_size / config.head_count;
  ASSIGN_OR_RETURN(config.head_dim, fields.IntegerOr("head_dim", default_head_dim, 2, kMaxHeadDim));
  if (config.head_dim < 2 || config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0) {
    return fields.Error("head_dim",
                        absl::StrCat("is ", config.head_dim, "; must be even, 2 to ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::StatusOr<Llama3RopeScaling> ReadLlama3Scaling(const Fields& fields) {
  Llama3RopeScaling scaling;
  ASSIGN_OR_RETURN(scaling.factor, fields.Number("factor", 1.0, 1e6));
  ASSIGN_OR_RETURN(scaling.low_freq_factor, fields.Number("low_freq_factor", 1e-6, 1e6));
  ASSIGN_OR_RETURN(scaling.high_freq_factor, fields.Number("high_freq_factor", 1e-6, 1e6));
  ASSIGN_OR_RETURN(scaling.original_max_position_embeddings,
                   fields.Integer("original_max_position_embeddings", 1, kMaxPositions));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return fields.Error("high_freq_factor", "must be greater than low_freq_factor");
  }
  return scaling;
}

// transformers 4 writes "rope_theta" and, when scaled, "rope_scaling"; transformers 5 writes both
// into "rope_parameters".
absl::Status ReadRope(const Fields& fields, ModelConfig& config) {
  constexpr double kMaxTheta = 1e15;
  ASSIGN_OR_RETURN(config.rope_theta, fields.NumberOr("rope_theta", 10000.0, 1.0, kMaxTheta));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(name)) continue;
    ASSIGN_OR_RETURN(const Fields rope, fields.Object(name));
    ASSIGN_OR_RETURN(config.rope_theta,
                     rope.NumberOr("rope_theta", config.rope_theta, 1.0, kMaxTheta));
    ASSIGN_OR_RETURN(const double rotary_share,
                     rope.NumberOr("partial_rotary_factor", 1.0, 0.0, 1.0));
    if (rotary_share != 1.0) {
      return rope.Error("partial_rotary_factor", "partial rotation is not supported");
    }
    const char* type_name = rope.Has("rope_type") || !rope.Has("type") ? "rope_type" : "type";
    ASSIGN_OR_RETURN(const std::string type, rope.StringOr(type_name, ""));
    if (type == "llama3") {
      ASSIGN_OR_RETURN(config.rope_scaling, ReadLlama3Scaling(rope));
    } else if (type.empty()) {
      return rope.Error(type_name, "is missing");
    } else if (type != "default") {
      return rope.Error(type_name, absl::StrCat("'", type,
                                                "' is not supported; supported are default and "
                                                "llama3"));
    }
  }
  return absl::OkStatus();
}

// An id, a list of ids, or nothing.
absl::StatusOr<std::vector<int32_t>> ReadEosTokenIds(const Fields& fields,
                                                     const ModelConfig& config) {
  std::vector<int32_t> ids;
  const Json* value = fields.Find("eos_token_id");
  if (value == nullptr) return ids;
  const size_t count = value->is_array() ? value->size() : 1;
  if (count > static_cast<size_t>(kMaxEosTokenIds)) {
    return fields.Error("eos_token_id",
                        absl::StrCat("lists ", count, " ids; the limit is ", kMaxEosTokenIds));
  }
  for (size_t i = 0; i < count; ++i) {
    const Json& id = value->is_array() ? (*value)[i] : *value;
    if (!id.is_number_unsigned() ||
        id.get<uint64_t>() >= static_cast<uint64_t>(config.vocab_size)) {
      return fields.Error("eos_token_id",
                          absl::StrCat("holds something that is not a token id below vocab_size, "
                                       "which is ",
                                       config.vocab_size));
    }
    ids.push_back(id.get<int32_t>());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

absl::Status ReadSamplingDefaults(const Fields& fields, GenerationDefaults& defaults) {
  if (fields.Has("repetition_penalty")) {
    ASSIGN_OR_RETURN(const double penalty, fields.Number("repetition_penalty", 1e-6, 1e6));
    defaults.repetition_penalty = static_cast<float>(penalty);
  }
  // With "do_sample": false the other fields are leftovers that say nothing: greedy is meant.
  ASSIGN_OR_RETURN(const bool is_sampling, fields.BoolOr("do_sample", true));
  if (!is_sampling) return absl::OkStatus();
  if (fields.Has("temperature")) {
    ASSIGN_OR_RETURN(const double temperature, fields.Number("temperature", 0.0, kMaxTemperature));
    defaults.temperature = static_cast<float>(temperature);
    if (temperature != 0.0 && *defaults.temperature < kMinTemperature) {
      return fields.Error("temperature", absl::StrCat("must be 0 (greedy) or at least ",
                                                      kMinTemperature, ", not ", temperature));
    }
  }
  if (fields.Has("top_k")) {
    ASSIGN_OR_RETURN(const int64_t top_k,
                     fields.Integer("top_k", -1, std::numeric_limits<int32_t>::max()));
    defaults.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));  // -1 is "off" too
  }
  if (fields.Has("top_p")) {
    ASSIGN_OR_RETURN(const double top_p, fields.Number("top_p", 1e-6, 1.0));
    defaults.top_p = static_cast<float>(top_p);
  }
  if (fields.Has("min_p")) {
    ASSIGN_OR_RETURN(const double min_p, fields.Number("min_p", 0.0, 1.0));
    defaults.min_p = static_cast<float>(min_p);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> LoadModelConfig(std::string_view model_dir) {
  const std::string path = JoinPath(model_dir, "config.json");
  ASSIGN_OR_RETURN(const Json json, ReadJsonObject(path));
  const Fields fields(path, "", json);

  ModelConfig config;
  ASSIGN_OR_RETURN(config.architecture, ReadArchitecture(fields));
  RETURN_IF_ERROR(RejectUnsupported(fields));
  RETURN_IF_ERROR(ReadSizes(fields, config));
  RETURN_IF_ERROR(ReadRope(fields, config));
  ASSIGN_OR_RETURN(const double epsilon, fields.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1.0));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.BoolOr("tie_word_embeddings", false));
  ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  config.output_bias = config.attention_bias;
  if (config.architecture == Architecture::kLlama) {
    ASSIGN_OR_RETURN(config.mlp_bias, fields.BoolOr("mlp_bias", false));
  }
  config.has_qk_norm = config.architecture == Architecture::kQwen3;
  return config;
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(std::string_view model_dir,
                                                          const ModelConfig& config) {
  GenerationDefaults defaults;
  const std::string path = JoinPath(model_dir, "generation_config.json");
  if (PathExists(path)) {
    ASSIGN_OR_RETURN(const Json json, ReadJsonObject(path));
    const Fields fields(path, "", json);
    ASSIGN_OR_RETURN(defaults.eos_token_ids, ReadEosTokenIds(fields, config));
    RETURN_IF_ERROR(ReadSamplingDefaults(fields, defaults));
    if (!defaults.eos_token_ids.empty()) return defaults;
  }
  const std::string config_path = JoinPath(model_dir, "config.json");
  ASSIGN_OR_RETURN(const Json json, ReadJsonObject(config_path));
  ASSIGN_OR_RETURN(defaults.eos_token_ids, ReadEosTokenIds(Fields(config_path, "", json), config));
  return defaults;
}

}  // namespace selfsame
