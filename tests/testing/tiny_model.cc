#include "tests/testing/tiny_model.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/bfloat16.h"

namespace selfsame::testing {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Mean 0, variance 1: a sum of twelve uniform numbers.
  float Normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(Next() >> 11) * 0x1p-53;
    return static_cast<float>(sum);
  }

 private:
  uint64_t state_;
};

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  SELFSAME_CHECK(file.good());
}

class CheckpointWriter {
 public:
  explicit CheckpointWriter(uint64_t seed) : random_(seed) {}

  // Elements are offset + scale * normal.
  void Add(const std::string& name, const std::vector<int>& shape, float scale,
           float offset = 0.0f) {
    Append(name, shape, Draw(shape, scale, offset));
  }

  void AddNearTies(const std::string& name, int rows, int width, float scale, int group) {
    std::vector<BFloat16> values = Draw({rows, width}, scale, 0.0f);
    for (int row = 0; row < rows; ++row) {
      if (row % group == 0) continue;
      for (int i = 0; i < width; ++i) {
        values[static_cast<size_t>(row * width + i)] =
            values[static_cast<size_t>((row - row % group) * width + i)];
      }
      for (int i = 0; i < 2; ++i) {
        const auto moved = static_cast<size_t>(row * width) +
                           static_cast<size_t>(random_.Next() % static_cast<uint64_t>(width));
        values[moved].bits ^= 1u;
      }
    }
    Append(name, {rows, width}, values);
  }

  void Write(const std::string& path) const {
    std::string header = absl::StrCat("{", header_, "}");
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xff));
    WriteFile(path, absl::StrCat(bytes, header, data_));
  }

 private:
  std::vector<BFloat16> Draw(const std::vector<int>& shape, float scale, float offset) {
    size_t count = 1;
    for (const int extent : shape) count *= static_cast<size_t>(extent);
    std::vector<BFloat16> values(count);
    for (BFloat16& value : values) value = ToBFloat16(offset + scale * random_.Normal());
    return values;
  }

  void Append(const std::string& name, const std::vector<int>& shape,
              const std::vector<BFloat16>& values) {
    std::string extents;
    for (const int extent : shape) absl::StrAppend(&extents, extents.empty() ? "" : ",", extent);
    const size_t begin = data_.size();
    for (const BFloat16 value : values) {
      data_.push_back(static_cast<char>(value.bits & 0xff));
      data_.push_back(static_cast<char>(value.bits >> 8));
    }
    absl::StrAppend(&header_, header_.empty() ? "" : ",", "\"", name,
                    "\":{\"dtype\":\"BF16\",\"shape\":[", extents, "],\"data_offsets\":[", begin,
                    ",", data_.size(), "]}");
  }

  Random random_;
  std::string header_;
  std::string data_;
};

std::string ConfigJson(const TinyModelOptions& o) {
  return absl::StrCat(
      "{\"architectures\":[\"", o.is_qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM",
      "\"],\"model_type\":\"", o.is_qwen3 ? "qwen3" : "llama", "\",\"hidden_act\":\"silu\"",
      ",\"vocab_size\":", o.vocab_size, ",\"hidden_size\":", o.hidden_size,
      ",\"intermediate_size\":", o.intermediate_size, ",\"num_hidden_layers\":", o.layer_count,
      ",\"num_attention_heads\":", o.head_count, ",\"num_key_value_heads\":", o.kv_head_count,
      ",\"head_dim\":", o.head_dim, ",\"max_position_embeddings\":", o.max_position_embeddings,
      ",\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"rope_scaling\":null",
      ",\"tie_word_embeddings\":", o.tie_word_embeddings ? "true" : "false",
      ",\"attention_bias\":", o.attention_bias ? "true" : "false",
      ",\"mlp_bias\":false,\"eos_token_id\":", o.eos_token_id, ",\"torch_dtype\":\"bfloat16\"}\n");
}

void AddLayer(CheckpointWriter& writer, const TinyModelOptions& o, int index) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const int q_width = o.head_count * o.head_dim;
  const int kv_width = o.kv_head_count * o.head_dim;
  // Large enough that attention is far from uniform and a layer changes its input a good deal.
  const auto scale = [](int width) { return 1.5f / std::sqrt(static_cast<float>(width)); };
  writer.Add(prefix + "input_layernorm.weight", {o.hidden_size}, 0.2f, 1.0f);
  writer.Add(prefix + "post_attention_layernorm.weight", {o.hidden_size}, 0.2f, 1.0f);
  const auto add_projection = [&](const std::string& name, int rows) {
    writer.Add(prefix + "self_attn." + name + "_proj.weight", {rows, o.hidden_size},
               scale(o.hidden_size));
    if (o.attention_bias) {
      writer.Add(prefix + "self_attn." + name + "_proj.bias", {rows}, 0.1f);
    }
  };
  add_projection("q", q_width);
  add_projection("k", kv_width);
  add_projection("v", kv_width);
  writer.Add(prefix + "self_attn.o_proj.weight", {o.hidden_size, q_width}, scale(q_width));
  if (o.attention_bias) writer.Add(prefix + "self_attn.o_proj.bias", {o.hidden_size}, 0.1f);
  if (o.is_qwen3) {
    writer.Add(prefix + "self_attn.q_norm.weight", {o.head_dim}, 0.2f, 1.0f);
    writer.Add(prefix + "self_attn.k_norm.weight", {o.head_dim}, 0.2f, 1.0f);
  }
  writer.Add(prefix + "mlp.gate_proj.weight", {o.intermediate_size, o.hidden_size},
             scale(o.hidden_size));
  writer.Add(prefix + "mlp.up_proj.weight", {o.intermediate_size, o.hidden_size},
             scale(o.hidden_size));
  writer.Add(prefix + "mlp.down_proj.weight", {o.hidden_size, o.intermediate_size},
             scale(o.intermediate_size));
}

}  // namespace

TempDir::TempDir() {
  path_ = (std::filesystem::temp_directory_path() / "selfsame-test-XXXXXX").string();
  SELFSAME_CHECK(mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void WriteTinyModel(const std::string& dir, const TinyModelOptions& options) {
  WriteFile(dir + "/config.json", ConfigJson(options));
  WriteFile(dir + "/generation_config.json",
            absl::StrCat("{\"eos_token_id\":", options.eos_token_id, "}\n"));
  CheckpointWriter writer(options.seed);
  const auto add_vocabulary = [&](const std::string& name) {
    if (options.near_tie_rows > 1) {
      writer.AddNearTies(name, options.vocab_size, options.hidden_size, 1.0f,
                         options.near_tie_rows);
    } else {
      writer.Add(name, {options.vocab_size, options.hidden_size}, 1.0f);
    }
  };
  if (options.tie_word_embeddings) {
    add_vocabulary("model.embed_tokens.weight");
  } else {
    writer.Add("model.embed_tokens.weight", {options.vocab_size, options.hidden_size}, 1.0f);
    add_vocabulary("lm_head.weight");
  }
  for (int i = 0; i < options.layer_count; ++i) AddLayer(writer, options, i);
  writer.Add("model.norm.weight", {options.hidden_size}, 0.2f, 1.0f);
  writer.Write(dir + "/model.safetensors");
}

}  // namespace selfsame::testing
