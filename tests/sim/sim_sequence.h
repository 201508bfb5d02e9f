#pragma once

#include <cstdint>
#include <vector>

#include "common/sampling/logit_rules.h"
#include "kernels/ops.h"
#include "tests/sim/sim_model.h"

namespace selfsame::sim {

// Prompt and output of one request under the simulation's arithmetic, by definition: logit edits
// are counted anew for every token.
class SimSequence {
 public:
  // `sampling`: all but position and edits.
  SimSequence(const SampleRow& sampling, LogitRules rules, std::vector<int32_t> prompt_token_ids,
              std::vector<int32_t> stop_token_ids);

  // The next output token.
  void Append(int32_t token_id);
  SampledToken Next(uint64_t weights) const;
  int32_t length() const { return length_; }

 private:
  SampleRow sampling_;
  LogitRules rules_;
  std::vector<int32_t> prompt_token_ids_;
  std::vector<int32_t> stop_token_ids_;
  std::vector<int32_t> output_;
  Prefix prefix_;
  int32_t length_ = 0;
};

}  // namespace selfsame::sim
