#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/model.h"
#include "common/sampling/logit_rules.h"

namespace selfsame::testing {

struct Answer {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<TopLogprobs> top_logprobs;       // as many, if sampling.top_count > 0
  std::vector<PromptLogprob> prompt_logprobs;  // of the prompt's tokens but the first, if wanted
};

struct LoopParams {
  SampleRow sampling;  // position and edits are filled in by the loop
  LogitRules logit_rules = {};
  int32_t max_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  std::optional<int32_t> prompt_logprobs;  // alternatives for each; unset: none wanted
};

// The answer by definition: a fresh cache, one row a pass, from the first prompt token to the last
// output token, with none of the engine's code in between. `model` must be canonical. Ends with a
// stop token (which is part of the answer), max_tokens or the context limit.
Answer RunCanonicalLoop(Model& model, const std::vector<int32_t>& prompt, const LoopParams& params);

}  // namespace selfsame::testing
