#include "common/model/weights.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/model/fake_ops.h"
#include "tests/unit/model/model_directory.h"

namespace selfsame {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bits = std::vector<uint16_t>;

ModelConfig SmallLlama() {
  ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 6;
  config.intermediate_size = 10;
  config.layer_count = 2;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 32;
  config.attention_bias = true;
  config.output_bias = true;
  config.mlp_bias = true;
  return config;
}

ModelConfig SmallQwen3() {
  ModelConfig config = SmallLlama();
  config.architecture = Architecture::kQwen3;
  config.attention_bias = config.output_bias = config.mlp_bias = false;
  config.has_qk_norm = true;
  config.tie_word_embeddings = true;
  return config;
}

Bits BitsOf(const std::unique_ptr<PackedMatrix>& matrix) {
  return matrix == nullptr ? Bits() : static_cast<const FakeMatrix&>(*matrix).bits();
}

Bits BitsOf(const DeviceVector& vector) {
  Bits bits;
  if (vector == nullptr) return bits;
  for (size_t i = 0; i < vector->size_bytes() / 2; ++i) bits.push_back(VectorData(vector)[i].bits);
  return bits;
}

Bits Expected(const std::string& name, int64_t count) {
  Bits bits;
  for (const float value : TensorValues(name, count)) bits.push_back(ToBFloat16(value).bits);
  return bits;
}

Bits Concatenated(std::initializer_list<Bits> parts) {
  Bits all;
  for (const Bits& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Rows [begin, end) of a matrix with `cols` columns.
Bits Rows(const Bits& bits, int64_t cols, int64_t begin, int64_t end) {
  return Bits(bits.begin() + begin * cols, bits.begin() + end * cols);
}

Bits Columns(const Bits& bits, int64_t cols, int64_t begin, int64_t end) {
  Bits slice;
  for (size_t row = 0; row < bits.size() / cols; ++row) {
    slice.insert(slice.end(), bits.begin() + row * cols + begin, bits.begin() + row * cols + end);
  }
  return slice;
}

// All bits of a model, with a name to each.
std::map<std::string, Bits> AllBits(const ModelWeights& weights) {
  std::map<std::string, Bits> all = {{"embedding", BitsOf(weights.embedding)},
                                     {"final_norm", BitsOf(weights.final_norm)},
                                     {"head", BitsOf(weights.head)}};
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string prefix = std::to_string(i) + ".";
    all[prefix + "input_norm"] = BitsOf(layer.input_norm);
    all[prefix + "qkv"] = BitsOf(layer.qkv);
    all[prefix + "qkv_bias"] = BitsOf(layer.qkv_bias);
    all[prefix + "q_norm"] = BitsOf(layer.q_norm);
    all[prefix + "k_norm"] = BitsOf(layer.k_norm);
    all[prefix + "output"] = BitsOf(layer.output);
    all[prefix + "output_bias"] = BitsOf(layer.output_bias);
    all[prefix + "post_attention_norm"] = BitsOf(layer.post_attention_norm);
    all[prefix + "gate_up"] = BitsOf(layer.gate_up);
    all[prefix + "gate_up_bias"] = BitsOf(layer.gate_up_bias);
    all[prefix + "down"] = BitsOf(layer.down);
    all[prefix + "down_bias"] = BitsOf(layer.down_bias);
  }
  return all;
}

class WeightsTest : public ::testing::Test {
 protected:
  void Write(const TestTensors& tensors) {
    directory_.Write("model.safetensors", SafetensorsBytes(tensors));
  }
  absl::StatusOr<ModelWeights> Load(const ModelConfig& config, Rank rank = {}) {
    return LoadModelWeights(directory_.path(), config, rank, ops_);
  }
  void ExpectError(const ModelConfig& config, const std::string& tensor,
                   const std::string& message) {
    const auto weights = Load(config);
    ASSERT_FALSE(weights.ok()) << "expected: " << message;
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(weights.status().message()),
                AllOf(HasSubstr(directory_.path()), HasSubstr(tensor), HasSubstr(message)));
  }

  TempDirectory directory_;
  FakeOps ops_;
};

TEST_F(WeightsTest, FusesProjectionsInOrder) {
  Write(MakeTensors(SmallLlama()));
  const auto weights = Load(SmallLlama());
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(weights->layers.size(), 2u);
  const LayerWeights& layer = weights->layers[1];
  const std::string attention = "model.layers.1.self_attn.";
  const std::string mlp = "model.layers.1.mlp.";
  EXPECT_EQ(layer.qkv->n(), 32);
  EXPECT_EQ(layer.qkv->k(), 6);
  EXPECT_EQ(BitsOf(layer.qkv), Concatenated({Expected(attention + "q_proj.weight", 96),
                                             Expected(attention + "k_proj.weight", 48),
                                             Expected(attention + "v_proj.weight", 48)}));
  EXPECT_EQ(BitsOf(layer.qkv_bias), Concatenated({Expected(attention + "q_proj.bias", 16),
                                                  Expected(attention + "k_proj.bias", 8),
                                                  Expected(attention + "v_proj.bias", 8)}));
  EXPECT_EQ(layer.output->n(), 6);
  EXPECT_EQ(layer.output->k(), 16);
  EXPECT_EQ(BitsOf(layer.output), Expected(attention + "o_proj.weight", 96));
  EXPECT_EQ(BitsOf(layer.output_bias), Expected(attention + "o_proj.bias", 6));
  EXPECT_EQ(BitsOf(layer.gate_up), Concatenated({Expected(mlp + "gate_proj.weight", 60),
                                                 Expected(mlp + "up_proj.weight", 60)}));
  EXPECT_EQ(BitsOf(layer.gate_up_bias), Concatenated({Expected(mlp + "gate_proj.bias", 10),
                                                      Expected(mlp + "up_proj.bias", 10)}));
  EXPECT_EQ(BitsOf(layer.down), Expected(mlp + "down_proj.weight", 60));
  EXPECT_EQ(BitsOf(layer.down_bias), Expected(mlp + "down_proj.bias", 6));
  EXPECT_EQ(BitsOf(layer.input_norm), Expected("model.layers.1.input_layernorm.weight", 6));
  EXPECT_EQ(BitsOf(layer.post_attention_norm),
            Expected("model.layers.1.post_attention_layernorm.weight", 6));
  EXPECT_EQ(layer.q_norm, nullptr);
  EXPECT_EQ(BitsOf(weights->embedding), Expected("model.embed_tokens.weight", 66));
  EXPECT_EQ(BitsOf(weights->final_norm), Expected("model.norm.weight", 6));
  EXPECT_EQ(BitsOf(weights->head), Expected("lm_head.weight", 66));
  EXPECT_EQ(&weights->lm_head(), weights->head.get());
}

TEST_F(WeightsTest, TiedModelUsesTheEmbeddingAsHead) {
  // A stray lm_head in the file is not used, as transformers does not use it either.
  ModelConfig untied = SmallQwen3();
  untied.tie_word_embeddings = false;
  Write(MakeTensors(untied));
  const auto weights = Load(SmallQwen3());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->head, nullptr);
  EXPECT_EQ(&weights->lm_head(), weights->embedding.get());
  EXPECT_EQ(BitsOf(weights->layers[0].q_norm),
            Expected("model.layers.0.self_attn.q_norm.weight", 4));
  EXPECT_EQ(BitsOf(weights->layers[0].k_norm),
            Expected("model.layers.0.self_attn.k_norm.weight", 4));
  EXPECT_EQ(weights->layers[0].qkv_bias, nullptr);
  EXPECT_EQ(weights->layers[0].down_bias, nullptr);

  Write(MakeTensors(SmallQwen3()));
  const auto without_head = Load(SmallQwen3());
  ASSERT_TRUE(without_head.ok()) << without_head.status();
  EXPECT_EQ(without_head->digest, weights->digest);
}

TEST_F(WeightsTest, EveryTypeBecomesTheSameBf16) {
  Write(MakeTensors(SmallLlama(), "BF16"));
  const auto bf16 = Load(SmallLlama());
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  for (const char* dtype : {"F16", "F32"}) {
    Write(MakeTensors(SmallLlama(), dtype));
    const auto weights = Load(SmallLlama());
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(AllBits(*weights), AllBits(*bf16)) << dtype;
    EXPECT_NE(weights->digest, bf16->digest) << dtype;
  }
}

TEST_F(WeightsTest, VectorsAreRoundedToNearestEven) {
  TestTensors tensors = MakeTensors(SmallLlama());
  // Ties: 1 + 2^-8 goes down to 1, 1 + 3 * 2^-8 up to 1 + 2^-6.
  tensors["model.norm.weight"] = {
      "F32", {6}, Encode("F32", {1.00390625f, 1.01171875f, -1.00390625f, 3e38f, 1e-40f, -0.0f})};
  Write(tensors);
  const auto weights = Load(SmallLlama());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(BitsOf(weights->final_norm), (Bits{0x3f80, 0x3f82, 0xbf80, 0x7f62, 0x0001, 0x8000}));
}

TEST_F(WeightsTest, ShardsEqualOneFile) {
  const TestTensors tensors = MakeTensors(SmallLlama());
  Write(tensors);
  const auto single = Load(SmallLlama());
  ASSERT_TRUE(single.ok()) << single.status();

  TempDirectory sharded;
  std::vector<TestTensors> shards(3);
  nlohmann::json weight_map;
  int index = 0;
  for (const auto& [name, tensor] : tensors) {
    const int shard = index++ % 3;
    shards[shard][name] = tensor;
    weight_map[name] = "model-" + std::to_string(shard) + ".safetensors";
  }
  for (int i = 0; i < 3; ++i) {
    sharded.Write("model-" + std::to_string(i) + ".safetensors", SafetensorsBytes(shards[i]));
  }
  sharded.Write("model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
  const auto weights = LoadModelWeights(sharded.path(), SmallLlama(), {}, ops_);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(AllBits(*weights), AllBits(*single));
  EXPECT_EQ(weights->digest, single->digest);
}

TEST_F(WeightsTest, RanksTogetherHoldTheWholeModel) {
  Write(MakeTensors(SmallLlama()));
  const auto whole = Load(SmallLlama());
  const auto first = Load(SmallLlama(), {.index = 0, .count = 2});
  const auto second = Load(SmallLlama(), {.index = 1, .count = 2});
  ASSERT_TRUE(whole.ok() && first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->digest, whole->digest);
  EXPECT_EQ(second->digest, whole->digest);
  EXPECT_EQ(BitsOf(second->embedding), BitsOf(whole->embedding));
  EXPECT_EQ(BitsOf(second->head), BitsOf(whole->head));

  const LayerWeights& all = whole->layers[0];
  const LayerWeights& a = first->layers[0];
  const LayerWeights& b = second->layers[0];
  EXPECT_EQ(BitsOf(b.input_norm), BitsOf(all.input_norm));
  // Rows of qkv: q 16, k 8, v 8; each rank has half of each.
  EXPECT_EQ(a.qkv->n(), 16);
  const auto joined = [](const Bits& x, const Bits& y, int64_t cols, int64_t begin, int64_t end) {
    return Concatenated({Rows(x, cols, begin, end), Rows(y, cols, begin, end)});
  };
  const auto check_qkv = [&](const Bits& x, const Bits& y, const Bits& together, int64_t cols) {
    EXPECT_EQ(joined(x, y, cols, 0, 8), Rows(together, cols, 0, 16));
    EXPECT_EQ(joined(x, y, cols, 8, 12), Rows(together, cols, 16, 24));
    EXPECT_EQ(joined(x, y, cols, 12, 16), Rows(together, cols, 24, 32));
  };
  check_qkv(BitsOf(a.qkv), BitsOf(b.qkv), BitsOf(all.qkv), 6);
  check_qkv(BitsOf(a.qkv_bias), BitsOf(b.qkv_bias), BitsOf(all.qkv_bias), 1);
  EXPECT_EQ(joined(BitsOf(a.gate_up), BitsOf(b.gate_up), 6, 0, 5),
            Rows(BitsOf(all.gate_up), 6, 0, 10));
  EXPECT_EQ(joined(BitsOf(a.gate_up), BitsOf(b.gate_up), 6, 5, 10),
            Rows(BitsOf(all.gate_up), 6, 10, 20));
  EXPECT_EQ(BitsOf(a.gate_up_bias).size(), 10u);

  EXPECT_EQ(a.output->k(), 8);
  EXPECT_EQ(BitsOf(a.output), Columns(BitsOf(all.output), 16, 0, 8));
  EXPECT_EQ(BitsOf(b.output), Columns(BitsOf(all.output), 16, 8, 16));
  EXPECT_EQ(BitsOf(a.down), Columns(BitsOf(all.down), 10, 0, 5));
  EXPECT_EQ(BitsOf(b.down), Columns(BitsOf(all.down), 10, 5, 10));
  // Biases that follow a sum over ranks are added once.
  EXPECT_EQ(BitsOf(a.output_bias), BitsOf(all.output_bias));
  EXPECT_EQ(BitsOf(a.down_bias), BitsOf(all.down_bias));
  EXPECT_EQ(b.output_bias, nullptr);
  EXPECT_EQ(b.down_bias, nullptr);
}

TEST_F(WeightsTest, RanksThatDoNotDivideTheModelAreAnError) {
  Write(MakeTensors(SmallLlama()));
  const auto weights = Load(SmallLlama(), {.index = 0, .count = 4});
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr("num_key_value_heads is 2"));
}

TEST_F(WeightsTest, DigestCoversEveryByteNameAndShape) {
  const TestTensors tensors = MakeTensors(SmallQwen3());
  Write(tensors);
  const auto original = Load(SmallQwen3());
  ASSERT_TRUE(original.ok()) << original.status();
  EXPECT_EQ(original->digest.size(), 64u);
  for (const auto& [name, tensor] : tensors) {
    TestTensors changed = tensors;
    changed[name].bytes.back() ^= 1;
    Write(changed);
    const auto weights = Load(SmallQwen3());
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_NE(weights->digest, original->digest) << name;
  }
}

TEST_F(WeightsTest, MissingTensorIsNamed) {
  const TestTensors tensors = MakeTensors(SmallLlama());
  for (const auto& [name, tensor] : tensors) {
    TestTensors incomplete = tensors;
    incomplete.erase(name);
    Write(incomplete);
    ExpectError(SmallLlama(), "'" + name + "'", "is missing");
  }
}

TEST_F(WeightsTest, WrongShapeIsNamed) {
  const TestTensors tensors = MakeTensors(SmallLlama());
  for (const auto& [name, tensor] : tensors) {
    TestTensors changed = tensors;
    changed[name].shape.insert(changed[name].shape.begin(), 1);
    Write(changed);
    ExpectError(SmallLlama(), "'" + name + "'", "but config.json asks for [");
  }
  ModelConfig wider = SmallLlama();
  wider.hidden_size = 7;
  Write(tensors);
  ExpectError(wider, "'model.embed_tokens.weight'", "[11, 6] but config.json asks for [11, 7]");
}

TEST_F(WeightsTest, UnsupportedTypeIsNamed) {
  TestTensors tensors = MakeTensors(SmallLlama());
  tensors["model.layers.1.mlp.up_proj.weight"] = {"F8_E4M3", {10, 6}, std::string(60, 'x')};
  Write(tensors);
  ExpectError(SmallLlama(), "'model.layers.1.mlp.up_proj.weight'", "has dtype F8_E4M3");
}

TEST_F(WeightsTest, MissingAndTruncatedFilesAreErrors) {
  ExpectError(SmallLlama(), "", "holds neither");
  const std::string bytes = SafetensorsBytes(MakeTensors(SmallLlama()));
  directory_.Write("model.safetensors", bytes.substr(0, bytes.size() - 1));
  ExpectError(SmallLlama(), "", "is it truncated?");
}

TEST_F(WeightsTest, DeviceWithoutMemoryIsReported) {
  Write(MakeTensors(SmallLlama()));
  FakeOps small(/*free_bytes=*/20);
  const auto weights = LoadModelWeights(directory_.path(), SmallLlama(), {}, small);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kResourceExhausted);
}

// Directories that transformers wrote; the second has several shards.
TEST_F(WeightsTest, LoadsTheCommittedModels) {
  for (const char* name : {"random-llama", "random-qwen3"}) {
    const std::string path = std::string(SELFSAME_SOURCE_DIR) + "/tests/data/" + name;
    const auto config = LoadModelConfig(path);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto weights = LoadModelWeights(path, *config, {}, ops_);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->layers.size(), static_cast<size_t>(config->layer_count));
  }
}

}  // namespace
}  // namespace selfsame
