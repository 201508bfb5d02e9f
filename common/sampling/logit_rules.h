#pragma once

// What a request asks of the logits themselves, before temperature and filters. Fields as in
// inference.proto.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace selfsame {

struct LogitBias {
  int32_t token_id = 0;
  float bias = 0.0f;
  bool operator==(const LogitBias&) const = default;
};

struct LogitRules {
  float repetition_penalty = 1.0f;         // of tokens in prompt or output; 1: off
  float presence_penalty = 0.0f;           // of tokens in the output; 0: off
  float frequency_penalty = 0.0f;          // for each time a token is in the output; 0: off
  std::vector<LogitBias> logit_bias = {};  // distinct ids, ascending
  int32_t min_tokens = 0;                  // output tokens before which no stop token may come

  // No logit is ever changed.
  bool is_neutral() const { return *this == LogitRules(); }
  bool counts_prompt() const { return repetition_penalty != 1.0f; }
  bool counts_output() const {
    return counts_prompt() || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  bool operator==(const LogitRules&) const = default;
};

// The entries of a map from token id to bias, ascending.
template <typename Map>
std::vector<LogitBias> SortedBiases(const Map& map) {
  std::vector<LogitBias> biases;
  biases.reserve(map.size());
  for (const auto& [token_id, bias] : map) biases.push_back({token_id, bias});
  std::sort(biases.begin(), biases.end(),
            [](const LogitBias& a, const LogitBias& b) { return a.token_id < b.token_id; });
  return biases;
}

// Bounds of `rules` and of min-p, those of common/limits.h. INVALID_ARGUMENT names the field as
// inference.proto and verification.proto have it and the limit.
absl::Status ValidateLogitRules(const LogitRules& rules, int32_t max_tokens, int32_t vocab_size);
absl::Status ValidateMinP(float min_p);
// 0, or a temperature that logits can be divided by. The same.
absl::Status ValidateTemperature(float temperature);

}  // namespace selfsame
