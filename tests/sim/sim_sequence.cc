#include "tests/sim/sim_sequence.h"

#include <utility>

#include "tests/testing/naive_edits.h"

namespace selfsame::sim {

SimSequence::SimSequence(const SampleRow& sampling, LogitRules rules,
                         std::vector<int32_t> prompt_token_ids, std::vector<int32_t> stop_token_ids)
    : sampling_(sampling),
      rules_(std::move(rules)),
      prompt_token_ids_(std::move(prompt_token_ids)),
      stop_token_ids_(std::move(stop_token_ids)) {
  for (const int32_t token_id : prompt_token_ids_) prefix_.Append(token_id);
  length_ = static_cast<int32_t>(prompt_token_ids_.size());
}

void SimSequence::Append(int32_t token_id) {
  output_.push_back(token_id);
  prefix_.Append(token_id);
  ++length_;
}

SampledToken SimSequence::Next(uint64_t weights) const {
  const auto edits = testing::NaiveEdits(rules_, prompt_token_ids_, output_, stop_token_ids_);
  SampleRow sampling = sampling_;
  sampling.position = length_;
  sampling.edits = edits;
  return prefix_.Next(sampling, weights);
}

}  // namespace selfsame::sim
