#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace selfsame {

// The host arrays of a pass, filled run by run. Must live until the pass has ended.
class PassRows {
 public:
  // Starts a sequence's rows. `block_table` covers every row that is added and stays valid.
  void BeginSequence(int32_t first_position, const int32_t* block_table);
  // The next row of the sequence.
  void AddRow(int32_t token_id);
  // As AddRow, and the row's logits become a token. The row's edits are copied.
  void AddLogitRow(int32_t token_id, const SampleRow& sampling);

  // The pass, padded to `row_count` rows. Nothing may be added afterwards.
  Pass PaddedTo(int32_t row_count);

  int32_t row_count() const { return static_cast<int32_t>(token_ids_.size()); }
  // Of each logit row. REQUIRES: PaddedTo was called.
  const std::vector<SampleRow>& sampling() const { return sampling_; }

 private:
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<SampleRow> sampling_;  // of each logit row
  std::vector<LogitEdit> edits_;     // of all of them, in their order
};

}  // namespace selfsame
