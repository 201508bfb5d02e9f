#include "tests/gpu/sampling_testing.h"

#include <cmath>
#include <map>

namespace selfsame::testing {

std::vector<float> RandomLogits(uint64_t seed, int64_t count, float scale) {
  std::vector<float> logits;
  for (int64_t i = 0; i < count; ++i) {
    logits.push_back(PseudoNormal(seed, static_cast<uint64_t>(i)) * scale);
  }
  return logits;
}

std::vector<LogitEdit> RandomEdits(uint64_t seed, int32_t vocab, int32_t count) {
  std::map<int32_t, LogitEdit> edits;
  for (int32_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint64_t>(4 * i);
    const auto place = std::abs(PseudoNormal(seed, index)) * static_cast<float>(vocab) / 3.0f;
    const int32_t id = static_cast<int32_t>(place) % vocab;
    edits[id] = {.token_id = id,
                 .bias = i % 9 == 0 ? -kInfinity : PseudoNormal(seed, index + 1) * 3.0f,
                 .repetition = 1.0f + std::abs(PseudoNormal(seed, index + 2)),
                 .penalty = PseudoNormal(seed, index + 3)};
  }
  std::vector<LogitEdit> list;
  for (const auto& [id, edit] : edits) list.push_back(edit);
  return list;
}

}  // namespace selfsame::testing
