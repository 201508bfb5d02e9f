#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/sampling/logit_rules.h"
#include "kernels/ops.h"

namespace selfsame {

// Keeps the logit edits of the next token of one sequence while its output grows and is rolled
// back. The edits are a function of rules, prompt, stop ids and the output tokens so far, and of
// nothing else: not of what was appended and truncated on the way. One thread; a copy is a
// snapshot.
//
//   bias        the token's logit bias; -infinity for a stop id while the output is shorter than
//               min_tokens
//   repetition  repetition_penalty for tokens of the prompt and of the output
//   penalty     frequency_penalty * count + presence_penalty for tokens of the output, which have
//               that count there
//
// Appending or truncating a token costs constant time.
class LogitEditor {
 public:
  // REQUIRES: ValidateLogitRules is OK; all ids in the vocabulary. `stop_token_ids`: those that end
  // the answer.
  LogitEditor(const LogitRules& rules, std::span<const int32_t> prompt_token_ids,
              std::span<const int32_t> stop_token_ids);

  // The next output token.
  void Append(int32_t token_id);
  // Keeps the first `count` output tokens, or all if there are no more. REQUIRES: count >= 0.
  void Truncate(int32_t count);

  int32_t output_count() const { return static_cast<int32_t>(output_.size()); }
  // One entry for each token whose logit is changed, in any order. Valid until the next change.
  std::span<const LogitEdit> edits() const { return edits_; }

 private:
  struct Token {
    int32_t count = 0;  // in the output
    bool is_in_prompt = false;
    bool is_stop = false;
    float bias = 0.0f;
    int32_t edit_index = -1;
  };

  LogitEdit EditOf(int32_t token_id, const Token& token) const;
  // Brings edits_ up to date with what is known of the token.
  void Update(int32_t token_id);
  void Count(int32_t token_id, int32_t difference);

  LogitRules rules_;
  std::vector<int32_t> stop_token_ids_;
  std::unordered_map<int32_t, Token> tokens_;  // all that ever mattered
  std::vector<int32_t> output_;
  std::vector<LogitEdit> edits_;
};

}  // namespace selfsame
