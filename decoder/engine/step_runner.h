#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/kv_cache.h"
#include "common/model/forward_model.h"
#include "decoder/engine/request.h"

namespace selfsame::decoder {

// The rows of one request in a step: positions from its state's length on.
struct RequestRows {
  Request* request = nullptr;
  int32_t row_count = 0;
  bool is_sampled = false;  // the last row gives the next token
  // Rows that give logprobs of the prompt. Set by StepRunner::Run.
  int32_t prompt_logprob_count = 0;
};

// Turns the rows of a step into one pass of the model. Its buffers are allocated once. One thread.
class StepRunner {
 public:
  // Both must outlive the runner. A pass is padded to the next of `rungs`, ascending; with none, or
  // beyond the last, it has the rows it has.
  StepRunner(ForwardModel& model, KvCache& kv, std::vector<int32_t> rungs = {});

  // Runs the pass and advances each request's state over its rows. Then sampled() holds, for each
  // of `rows` in order, its prompt logprobs and, where it is sampled, the next token. An error
  // means the device is lost. REQUIRES: room reserved in each state; rows within the model's
  // limits.
  absl::Status Run(std::span<RequestRows> rows);
  std::span<const SampledToken> sampled() const { return sampled_; }

 private:
  void AddRows(RequestRows& rows);

  ForwardModel& model_;
  KvCache& kv_;
  const std::vector<int32_t> rungs_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<SampleRow> sampling_;
  std::vector<SampledToken> sampled_;
};

}  // namespace selfsame::decoder
