#pragma once

#include <cstdint>
#include <vector>

namespace selfsame {

// A token and its logprob: log-softmax of the raw logits.
struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;

  bool operator==(const TokenLogprob&) const = default;
};

// The most likely tokens of one position, best first; ties in order of token id.
using TopLogprobs = std::vector<TokenLogprob>;

// What a model says of a token of the prompt, given the tokens before it.
struct PromptLogprob {
  float logprob = 0.0f;
  TopLogprobs top;  // empty unless alternatives were asked for

  bool operator==(const PromptLogprob&) const = default;
};

}  // namespace selfsame
