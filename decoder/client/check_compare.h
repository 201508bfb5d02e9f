#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "decoder/client/inference_api.h"

namespace selfsame::client {

// How an answer differs from the one it should equal.
struct Difference {
  // Output index, from 0, of the first token or logprob that differs; the length of the shorter
  // answer when one is a prefix of the other, of both when only the finish differs; 0 when it is a
  // logprob of the prompt.
  size_t position = 0;
  // The same for token ids alone.
  size_t token_position = 0;
  bool tokens = false;    // a token id or the count of tokens differs
  bool logprobs = false;  // the bits of a logprob, or an alternative, differ; the prompt's included
  bool finish = false;    // finish reason, matched stop or text differ

  std::string ToString() const;
};

// Compares raw token ids and the bits of logprobs, and alternatives where both have them. Empty
// when the answers are the same.
std::optional<Difference> FindDifference(const Answer& expected, const Answer& actual);

}  // namespace selfsame::client
