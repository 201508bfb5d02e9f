#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "common/model/synthetic.h"
#include "common/model/weights.h"

namespace selfsame {

// Where a model comes from: a Hugging Face directory, or a synthetic model. A synthetic one takes
// its tokeniser from the directory where one is given; else each byte is a token.
struct ModelSource {
  std::string model_dir;
  std::optional<SyntheticModel> synthetic;

  bool has_byte_tokenizer() const { return synthetic.has_value() && model_dir.empty(); }
  // What clients see: the directory's own name, or the synthetic model's.
  std::string Name() const;
};

// From --model_dir and --load_format: "safetensors" or "synthetic:..". INVALID_ARGUMENT naming the
// flag.
absl::StatusOr<ModelSource> ParseModelSource(std::string_view model_dir,
                                             std::string_view load_format);

// As the functions of the same names that take a directory.
absl::StatusOr<ModelConfig> LoadModelConfig(const ModelSource& source);
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const ModelSource& source,
                                                          const ModelConfig& config);
absl::StatusOr<ModelWeights> LoadModelWeights(const ModelSource& source, const ModelConfig& config,
                                              Rank rank, Ops& ops);

}  // namespace selfsame
