#include "common/canonical/fingerprint.h"

#include <bit>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/file.h"
#include "common/limits.h"
#include "common/sha256.h"

namespace selfsame {
namespace {

constexpr std::string_view kAbsent = "absent";

absl::StatusOr<std::string> DigestOfFile(std::string_view model_dir, std::string_view name) {
  const std::string path = JoinPath(model_dir, name);
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxTokenizerFileBytes));
  return Sha256().Update(bytes).HexDigest();
}

// As DigestOfFile, for a file that a model may lack.
absl::StatusOr<std::string> DigestOfOptionalFile(const ModelSource& source, std::string_view name) {
  if (source.has_byte_tokenizer() || !PathExists(JoinPath(source.model_dir, name))) {
    return std::string(kAbsent);
  }
  return DigestOfFile(source.model_dir, name);
}

// The bits of a number, so that no formatting rounds.
std::string BitsOf(double value) { return absl::StrCat(absl::Hex(std::bit_cast<uint64_t>(value))); }

template <typename T>
std::string OrUnset(const std::optional<T>& value) {
  return value ? BitsOf(static_cast<double>(*value)) : "unset";
}

std::string DescribeConfig(const ModelConfig& c) {
  std::string text = absl::StrCat(
      "architecture=", static_cast<int>(c.architecture), ",vocab=", c.vocab_size,
      ",hidden=", c.hidden_size, ",intermediate=", c.intermediate_size, ",layers=", c.layer_count,
      ",heads=", c.head_count, ",kv_heads=", c.kv_head_count, ",head_dim=", c.head_dim);
  absl::StrAppend(&text, ",epsilon=", BitsOf(c.rms_norm_epsilon), ",theta=", BitsOf(c.rope_theta),
                  ",tied=", c.tie_word_embeddings, ",attention_bias=", c.attention_bias,
                  ",output_bias=", c.output_bias, ",mlp_bias=", c.mlp_bias,
                  ",qk_norm=", c.has_qk_norm);
  if (c.rope_scaling) {
    absl::StrAppend(&text, ",scaling=", BitsOf(c.rope_scaling->factor), "/",
                    BitsOf(c.rope_scaling->low_freq_factor), "/",
                    BitsOf(c.rope_scaling->high_freq_factor), "/",
                    c.rope_scaling->original_max_position_embeddings);
  }
  return text;
}

std::string DescribeDefaults(const GenerationDefaults& defaults) {
  std::string text = "eos=";
  for (const int32_t token_id : defaults.eos_token_ids) absl::StrAppend(&text, token_id, ",");
  absl::StrAppend(&text, "temperature=", OrUnset(defaults.temperature),
                  ",top_k=", OrUnset(defaults.top_k), ",top_p=", OrUnset(defaults.top_p),
                  ",min_p=", OrUnset(defaults.min_p),
                  ",repetition_penalty=", OrUnset(defaults.repetition_penalty));
  return text;
}

}  // namespace

absl::StatusOr<std::string> ComputeFingerprint(const ModelSource& source, const Model& model,
                                               std::string_view arithmetic_id,
                                               std::string_view golden_digest) {
  std::string tokenizer = "bytes";
  if (!source.has_byte_tokenizer()) {
    ASSIGN_OR_RETURN(tokenizer, DigestOfFile(source.model_dir, "tokenizer.json"));
  }
  ASSIGN_OR_RETURN(const std::string tokenizer_config,
                   DigestOfOptionalFile(source, "tokenizer_config.json"));
  ASSIGN_OR_RETURN(const std::string template_file,
                   DigestOfOptionalFile(source, "chat_template.jinja"));
  Sha256 digest;
  const auto add = [&](std::string_view name, std::string_view value) {
    digest.UpdateField(name).UpdateField(value);
  };
  add("weights", model.weights_digest());
  add("tokenizer.json", tokenizer);
  add("tokenizer_config.json", tokenizer_config);
  add("chat_template.jinja", template_file);
  add("config", DescribeConfig(model.config()));
  add("generation defaults", DescribeDefaults(model.generation_defaults()));
  add("context limit", absl::StrCat(model.limits().context_limit));
  add("arithmetic", arithmetic_id);
  add("ranks", "1");
  add("build", SELFSAME_VERSION);
  add("golden pass", golden_digest);
  return digest.HexDigest();
}

}  // namespace selfsame
