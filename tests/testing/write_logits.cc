// Writes the logits of every row of one prefill as float32 [tokens, vocab], for other programs to
// compare: selfsame-write-logits DEVICE fast|canonical MODEL_DIR|synthetic:.. TOKENS FILE. Token i
// is (i * 977 + 5) mod vocab.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "common/model/model.h"
#include "kernels/backend.h"

namespace selfsame::testing {
namespace {

absl::Status WriteLogits(const std::string& device, std::string_view schedule,
                         std::string_view model_name, int32_t tokens, const std::string& path) {
  const bool is_synthetic = model_name.starts_with("synthetic:");
  ASSIGN_OR_RETURN(
      const ModelSource source,
      ParseModelSource(is_synthetic ? "" : model_name, is_synthetic ? model_name : "safetensors"));
  ASSIGN_OR_RETURN(
      std::unique_ptr<Ops> ops,
      CreateOps({.device = device,
                 .schedule = schedule == "fast" ? Schedule::kFast : Schedule::kCanonical,
                 .max_rows = tokens,
                 .max_logit_rows = tokens}));
  const PassLimits limits{.max_rows = tokens, .max_logit_rows = tokens, .context_limit = tokens};
  ASSIGN_OR_RETURN(auto model, Model::Load(source, limits, std::move(ops)));
  ASSIGN_OR_RETURN(auto kv, model->CreateKvCache(BlocksFor(tokens)));
  std::vector<int32_t> table(static_cast<size_t>(BlocksFor(tokens)));
  std::iota(table.begin(), table.end(), 0);
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int32_t> token_ids;
  for (const int64_t position : positions) {
    token_ids.push_back(static_cast<int32_t>((position * 977 + 5) % model->vocab_size()));
  }
  const SequenceRows sequence{
      .first_row = 0, .row_count = tokens, .first_position = 0, .block_table = table.data()};
  const std::vector<SampleRow> greedy(positions.size());
  std::vector<SampledToken> sampled(positions.size());
  RETURN_IF_ERROR(model->Run({.row_count = tokens,
                              .token_ids = token_ids,
                              .positions = positions,
                              .sequences = {&sequence, 1},
                              .logit_rows = positions},
                             *kv, greedy, sampled));
  const std::vector<float> logits = model->CopyLogits(tokens);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(logits.data()),
             static_cast<std::streamsize>(logits.size() * sizeof(float)));
  if (!file.flush()) return FileError(path, "cannot be written");
  return absl::OkStatus();
}

}  // namespace
}  // namespace selfsame::testing

int main(int argc, char** argv) {
  if (argc != 6 || std::atoi(argv[4]) < 1) {
    std::fprintf(stderr, "usage: selfsame-write-logits DEVICE SCHEDULE MODEL TOKENS FILE\n");
    return 2;
  }
  const absl::Status status =
      selfsame::testing::WriteLogits(argv[1], argv[2], argv[3], std::atoi(argv[4]), argv[5]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
