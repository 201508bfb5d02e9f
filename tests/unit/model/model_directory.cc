#include "tests/unit/model/model_directory.h"

#include <stdlib.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <sstream>

#include "common/check.h"
#include "kernels/bfloat16.h"
#include "nlohmann/json.hpp"

namespace selfsame {
namespace {

void AppendLittleEndian(uint64_t value, int size, std::string& bytes) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

// REQUIRES: |value| < 2 and a multiple of 2^-10, so that it is exact.
uint16_t HalfBits(float value) {
  if (value == 0.0f) return 0;
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const int mantissa = static_cast<int>(fraction * 2048.0f);       // [1024, 2048)
  SELFSAME_CHECK(std::ldexp(static_cast<float>(mantissa), exponent - 11) == std::fabs(value));
  SELFSAME_CHECK(exponent <= 1 && exponent >= -9);
  const int sign = std::signbit(value) ? 0x8000 : 0;
  return static_cast<uint16_t>(sign | ((exponent + 14) << 10) | (mantissa - 1024));
}

void Add(TestTensors& tensors, const std::string& dtype, const std::string& name,
         std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  tensors[name] = {dtype, std::move(shape), Encode(dtype, TensorValues(name, count))};
}

}  // namespace

TempDirectory::TempDirectory() {
  path_ = (std::filesystem::temp_directory_path() / "selfsame_test_XXXXXX").string();
  SELFSAME_CHECK(::mkdtemp(path_.data()) != nullptr);
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TempDirectory::Write(const std::string& name, const std::string& content) const {
  // Some file systems write a truncated file to disk at once, which costs more than the test.
  std::filesystem::remove(File(name));
  std::ofstream file(File(name), std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  SELFSAME_CHECK(file.good());
}

std::string TempDirectory::Read(const std::string& name) const {
  std::ifstream file(File(name), std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string RawSafetensors(const std::string& header, const std::string& data) {
  std::string bytes;
  AppendLittleEndian(header.size(), 8, bytes);
  return bytes + header + data;
}

std::string SafetensorsBytes(const TestTensors& tensors, int header_padding) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return RawSafetensors(header.dump() + std::string(header_padding, ' '), data);
}

std::string Encode(const std::string& dtype, const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) {
    if (dtype == "BF16") {
      AppendLittleEndian(ToBFloat16(value).bits, 2, bytes);
    } else if (dtype == "F16") {
      AppendLittleEndian(HalfBits(value), 2, bytes);
    } else {
      AppendLittleEndian(std::bit_cast<uint32_t>(value), 4, bytes);
    }
  }
  return bytes;
}

std::vector<float> TensorValues(const std::string& name, int64_t count) {
  uint32_t state = 2166136261u;
  for (const char c : name) state = (state ^ static_cast<uint8_t>(c)) * 16777619u;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back((static_cast<int>(state >> 25) - 64) / 64.0f);
  }
  return values;
}

TestTensors MakeTensors(const ModelConfig& config, const std::string& dtype) {
  TestTensors tensors;
  const int64_t hidden = config.hidden_size;
  const int64_t q_width = config.head_count * config.head_dim;
  const int64_t kv_width = config.kv_head_count * config.head_dim;
  const int64_t width = config.intermediate_size;
  Add(tensors, dtype, "model.embed_tokens.weight", {config.vocab_size, hidden});
  Add(tensors, dtype, "model.norm.weight", {hidden});
  if (!config.tie_word_embeddings) {
    Add(tensors, dtype, "lm_head.weight", {config.vocab_size, hidden});
  }
  for (int64_t i = 0; i < config.layer_count; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    Add(tensors, dtype, layer + "input_layernorm.weight", {hidden});
    Add(tensors, dtype, layer + "post_attention_layernorm.weight", {hidden});
    Add(tensors, dtype, layer + "self_attn.q_proj.weight", {q_width, hidden});
    Add(tensors, dtype, layer + "self_attn.k_proj.weight", {kv_width, hidden});
    Add(tensors, dtype, layer + "self_attn.v_proj.weight", {kv_width, hidden});
    Add(tensors, dtype, layer + "self_attn.o_proj.weight", {hidden, q_width});
    Add(tensors, dtype, layer + "mlp.gate_proj.weight", {width, hidden});
    Add(tensors, dtype, layer + "mlp.up_proj.weight", {width, hidden});
    Add(tensors, dtype, layer + "mlp.down_proj.weight", {hidden, width});
    if (config.attention_bias) {
      Add(tensors, dtype, layer + "self_attn.q_proj.bias", {q_width});
      Add(tensors, dtype, layer + "self_attn.k_proj.bias", {kv_width});
      Add(tensors, dtype, layer + "self_attn.v_proj.bias", {kv_width});
    }
    if (config.output_bias) Add(tensors, dtype, layer + "self_attn.o_proj.bias", {hidden});
    if (config.mlp_bias) {
      Add(tensors, dtype, layer + "mlp.gate_proj.bias", {width});
      Add(tensors, dtype, layer + "mlp.up_proj.bias", {width});
      Add(tensors, dtype, layer + "mlp.down_proj.bias", {hidden});
    }
    if (config.has_qk_norm) {
      Add(tensors, dtype, layer + "self_attn.q_norm.weight", {config.head_dim});
      Add(tensors, dtype, layer + "self_attn.k_norm.weight", {config.head_dim});
    }
  }
  return tensors;
}

}  // namespace selfsame
