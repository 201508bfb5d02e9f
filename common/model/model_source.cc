#include "common/model/model_source.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace selfsame {
namespace {

constexpr std::string_view kSyntheticPrefix = "synthetic:";

}  // namespace

std::string ModelSource::Name() const {
  if (synthetic.has_value()) return synthetic->Name();
  return std::filesystem::weakly_canonical(model_dir).filename().string();
}

absl::StatusOr<ModelSource> ParseModelSource(std::string_view model_dir,
                                             std::string_view load_format) {
  ModelSource source{.model_dir = std::string(model_dir), .synthetic = std::nullopt};
  if (load_format.starts_with(kSyntheticPrefix)) {
    ASSIGN_OR_RETURN(source.synthetic,
                     ParseSyntheticModel(load_format.substr(kSyntheticPrefix.size())));
    return source;
  }
  if (load_format != "safetensors") {
    return InvalidArgumentError("--load_format",
                                absl::StrCat("is \"", std::string(load_format),
                                             "\"; it may be safetensors or synthetic:SHAPE:SEED"));
  }
  if (model_dir.empty()) return InvalidArgumentError("--model_dir", "is required");
  return source;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const ModelSource& source) {
  if (source.synthetic.has_value()) return SyntheticConfig(*source.synthetic);
  return LoadModelConfig(source.model_dir);
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const ModelSource& source,
                                                          const ModelConfig& config) {
  if (source.synthetic.has_value()) return SyntheticDefaults(*source.synthetic);
  return LoadGenerationDefaults(source.model_dir, config);
}

absl::StatusOr<ModelWeights> LoadModelWeights(const ModelSource& source, const ModelConfig& config,
                                              Rank rank, Ops& ops) {
  if (source.synthetic.has_value()) {
    return MakeSyntheticWeights(*source.synthetic, config, rank, ops);
  }
  return LoadModelWeights(source.model_dir, config, rank, ops);
}

}  // namespace selfsame
