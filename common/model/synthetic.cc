#include "common/model/synthetic.h"

#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/sha256.h"

namespace selfsame {
namespace {

constexpr double kMaxFactor = 64.0;
// Changes whenever the same name gives other weights.
constexpr int kVersion = 1;

// What keys a tensor, beside the seed. Those of layer i are at kLayerTensors * (i + 1).
enum TensorId : uint64_t { kEmbedding, kHead, kLayerTensors = 8 };
enum LayerTensor : uint64_t { kQ, kK, kV, kO, kGate, kUp, kDown };

struct Shape {
  const char* name;
  int64_t ordinary_tokens;  // ids from there on are special
  ModelConfig config;
};

ModelConfig Llama(int64_t vocab, int64_t hidden, int64_t intermediate, int64_t layers,
                  int64_t heads, int64_t kv_heads, int64_t head_dim) {
  ModelConfig config;
  config.vocab_size = vocab;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.layer_count = layers;
  config.head_count = heads;
  config.kv_head_count = kv_heads;
  config.head_dim = head_dim;
  config.max_position_embeddings = 131072;
  config.rms_norm_epsilon = 1e-5f;
  config.rope_theta = 500000.0;
  return config;
}

ModelConfig WithScaling(ModelConfig config, double factor) {
  config.rope_scaling = Llama3RopeScaling{.factor = factor,
                                          .low_freq_factor = 1.0,
                                          .high_freq_factor = 4.0,
                                          .original_max_position_embeddings = 8192};
  return config;
}

std::vector<Shape> Shapes() {
  return {{"8b", 128000, WithScaling(Llama(128256, 4096, 14336, 32, 32, 8, 128), 8.0)},
          {"3b", 128000, WithScaling(Llama(128256, 3072, 8192, 28, 24, 8, 128), 32.0)},
          {"tiny", 500, Llama(512, 256, 704, 4, 4, 2, 64)}};
}

const Shape* Find(const std::vector<Shape>& shapes, std::string_view name) {
  for (const Shape& shape : shapes) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

absl::Status FormatError(std::string_view text, std::string_view problem) {
  return InvalidArgumentError("--load_format", absl::StrCat("\"synthetic:", std::string(text),
                                                            "\" ", std::string(problem)));
}

// Reads NAME=NUMBER into the field of that name.
absl::Status ReadFactor(std::string_view text, absl::string_view setting, SyntheticModel& model) {
  const std::vector<absl::string_view> halves = absl::StrSplit(setting, '=');
  double* field = nullptr;
  if (halves.front() == "gain") field = &model.gain;
  if (halves.front() == "beta") field = &model.beta;
  if (field == nullptr || halves.size() != 2 || !absl::SimpleAtod(halves.back(), field)) {
    return FormatError(text, "must be synthetic:SHAPE:SEED[:gain=G][:beta=B]");
  }
  if (!(*field >= 0.0 && *field <= kMaxFactor)) {
    return FormatError(text,
                       absl::StrCat("has a gain or beta that is not in [0, ", kMaxFactor, "]"));
  }
  return absl::OkStatus();
}

class Maker {
 public:
  Maker(const SyntheticModel& model, int64_t ordinary_tokens, const ModelConfig& config, Rank rank,
        Ops& ops)
      : model_(model), ordinary_tokens_(ordinary_tokens), config_(config), rank_(rank), ops_(ops) {}

  absl::StatusOr<ModelWeights> Make();

 private:
  uint64_t Key(uint64_t tensor) const {
    return SyntheticHash(SyntheticHash(model_.seed) + tensor * 0xd1342543de82ef95u);
  }
  // What a sum's unit is worth in a tensor of this standard deviation.
  static float Scale(double deviation) {
    return static_cast<float>(deviation / std::sqrt(4294967295.0 / 3.0));
  }
  SyntheticPart Whole(uint64_t tensor, int64_t rows, int64_t cols, double deviation) const {
    return {.key = Key(tensor),
            .rows = rows,
            .cols = cols,
            .tensor_cols = cols,
            .scale = Scale(deviation)};
  }
  // This rank's rows of a projection from the residual stream.
  SyntheticPart Input(uint64_t tensor, int64_t rows) const {
    const int64_t cols = config_.hidden_size;
    SyntheticPart part =
        Whole(tensor, rows / rank_.count, cols, 1.0 / std::sqrt(static_cast<double>(cols)));
    part.first_row = rank_.index * part.rows;
    return part;
  }
  // This rank's columns of a projection back to it.
  SyntheticPart Output(uint64_t tensor, int64_t cols) const {
    const double damping = std::sqrt(2.0 * static_cast<double>(config_.layer_count));
    SyntheticPart part = Whole(tensor, config_.hidden_size, cols,
                               model_.gain / damping / std::sqrt(static_cast<double>(cols)));
    part.cols = cols / rank_.count;
    part.first_col = rank_.index * part.cols;
    return part;
  }
  SyntheticPart Head() const;
  absl::StatusOr<DeviceVector> Ones();
  absl::StatusOr<LayerWeights> MakeLayer(uint64_t first_tensor);

  const SyntheticModel& model_;
  const int64_t ordinary_tokens_;
  const ModelConfig& config_;
  const Rank rank_;
  Ops& ops_;
};

SyntheticPart Maker::Head() const {
  const double hidden = static_cast<double>(config_.hidden_size);
  SyntheticPart part = Whole(kHead, config_.vocab_size, config_.hidden_size,
                             1.0 / kSyntheticWeightUnit / std::sqrt(hidden));
  part.image_rows = ordinary_tokens_;
  part.image_key = Key(kEmbedding);
  part.image_weight = static_cast<int32_t>(std::lround(model_.beta * kSyntheticWeightUnit));
  part.noise_weight = kSyntheticWeightUnit;
  uint64_t word = part.key;
  const auto draw = [&word, this] {
    word = SyntheticHash(word + 1);
    return static_cast<int64_t>(word % static_cast<uint64_t>(ordinary_tokens_));
  };
  for (int i = 0; i < kSyntheticImages; ++i) {
    int64_t multiplier = draw();
    while (std::gcd(multiplier, ordinary_tokens_) != 1) ++multiplier;
    part.multipliers[i] = multiplier;
    part.offsets[i] = draw();
  }
  return part;
}

absl::StatusOr<DeviceVector> Maker::Ones() {
  const std::vector<BFloat16> ones(static_cast<size_t>(config_.hidden_size), ToBFloat16(1.0f));
  ASSIGN_OR_RETURN(DeviceVector vector, ops_.Allocate(ones.size() * sizeof(BFloat16)));
  ops_.CopyToDevice(vector->data(), ones.data(), ones.size() * sizeof(BFloat16));
  return vector;
}

absl::StatusOr<LayerWeights> Maker::MakeLayer(uint64_t first_tensor) {
  const int64_t q_width = config_.head_count * config_.head_dim;
  const int64_t kv_width = config_.kv_head_count * config_.head_dim;
  const int64_t width = config_.intermediate_size;
  LayerWeights layer;
  ASSIGN_OR_RETURN(layer.input_norm, Ones());
  ASSIGN_OR_RETURN(layer.post_attention_norm, Ones());
  const SyntheticPart qkv[] = {Input(first_tensor + kQ, q_width),
                               Input(first_tensor + kK, kv_width),
                               Input(first_tensor + kV, kv_width)};
  ASSIGN_OR_RETURN(layer.qkv, ops_.GenerateMatrix(qkv));
  const SyntheticPart output = Output(first_tensor + kO, q_width);
  ASSIGN_OR_RETURN(layer.output, ops_.GenerateMatrix({&output, 1}));
  const SyntheticPart gate_up[] = {Input(first_tensor + kGate, width),
                                   Input(first_tensor + kUp, width)};
  ASSIGN_OR_RETURN(layer.gate_up, ops_.GenerateMatrix(gate_up));
  const SyntheticPart down = Output(first_tensor + kDown, width);
  ASSIGN_OR_RETURN(layer.down, ops_.GenerateMatrix({&down, 1}));
  return layer;
}

absl::StatusOr<ModelWeights> Maker::Make() {
  ModelWeights weights;
  const SyntheticPart embedding = Whole(kEmbedding, config_.vocab_size, config_.hidden_size, 1.0);
  ASSIGN_OR_RETURN(weights.embedding, ops_.GenerateMatrix({&embedding, 1}));
  for (int64_t i = 0; i < config_.layer_count; ++i) {
    ASSIGN_OR_RETURN(LayerWeights layer, MakeLayer(kLayerTensors * static_cast<uint64_t>(i + 1)));
    weights.layers.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(weights.final_norm, Ones());
  const SyntheticPart head = Head();
  ASSIGN_OR_RETURN(weights.head, ops_.GenerateMatrix({&head, 1}));
  weights.digest =
      Sha256().UpdateField(absl::StrCat(kVersion)).UpdateField(model_.Name()).HexDigest();
  return weights;
}

}  // namespace

std::string SyntheticModel::Name() const {
  return absl::StrCat("synthetic:", shape, ":", seed, ":gain=", gain, ":beta=", beta);
}

absl::StatusOr<SyntheticModel> ParseSyntheticModel(std::string_view text) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ':');
  SyntheticModel model;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &model.seed)) {
    return FormatError(text, "must be synthetic:SHAPE:SEED[:gain=G][:beta=B]");
  }
  model.shape = std::string(fields[0]);
  if (Find(Shapes(), model.shape) == nullptr) {
    return FormatError(text, "names no shape; there are 8b, 3b and tiny");
  }
  for (size_t i = 2; i < fields.size(); ++i) RETURN_IF_ERROR(ReadFactor(text, fields[i], model));
  return model;
}

ModelConfig SyntheticConfig(const SyntheticModel& model) {
  const std::vector<Shape> shapes = Shapes();
  const Shape* shape = Find(shapes, model.shape);
  SELFSAME_CHECK(shape != nullptr);
  return shape->config;
}

GenerationDefaults SyntheticDefaults(const SyntheticModel& model) {
  const std::vector<Shape> shapes = Shapes();
  const Shape* shape = Find(shapes, model.shape);
  SELFSAME_CHECK(shape != nullptr);
  GenerationDefaults defaults;
  defaults.eos_token_ids = {static_cast<int32_t>(shape->ordinary_tokens)};
  return defaults;
}

absl::StatusOr<ModelWeights> MakeSyntheticWeights(const SyntheticModel& model,
                                                  const ModelConfig& config, Rank rank, Ops& ops) {
  const std::vector<Shape> shapes = Shapes();
  const Shape* shape = Find(shapes, model.shape);
  SELFSAME_CHECK(shape != nullptr);
  SELFSAME_CHECK(config.head_count % rank.count == 0 && config.kv_head_count % rank.count == 0 &&
                 config.intermediate_size % rank.count == 0);
  return Maker(model, shape->ordinary_tokens, config, rank, ops).Make();
}

}  // namespace selfsame
