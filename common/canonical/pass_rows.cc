#include "common/canonical/pass_rows.h"

#include "common/check.h"

namespace selfsame {

void PassRows::BeginSequence(int32_t first_position, const int32_t* block_table) {
  sequences_.push_back({.first_row = row_count(),
                        .row_count = 0,
                        .first_position = first_position,
                        .block_table = block_table});
}

void PassRows::AddRow(int32_t token_id) {
  SequenceRows& sequence = sequences_.back();
  token_ids_.push_back(token_id);
  positions_.push_back(sequence.first_position + sequence.row_count);
  ++sequence.row_count;
}

void PassRows::AddLogitRow(int32_t token_id, const SampleRow& sampling) {
  logit_rows_.push_back(row_count());
  sampling_.push_back(sampling);
  edits_.insert(edits_.end(), sampling.edits.begin(), sampling.edits.end());
  AddRow(token_id);
}

Pass PassRows::PaddedTo(int32_t row_count) {
  SELFSAME_CHECK(row_count >= this->row_count());
  token_ids_.resize(static_cast<size_t>(row_count), 0);
  positions_.resize(static_cast<size_t>(row_count), 0);
  // Until now the rows' edits were known by their number only: edits_ moved while it grew.
  std::span<const LogitEdit> edits = edits_;
  for (SampleRow& row : sampling_) {
    const size_t count = row.edits.size();
    row.edits = edits.first(count);
    edits = edits.subspan(count);
  }
  return {.row_count = row_count,
          .token_ids = token_ids_,
          .positions = positions_,
          .sequences = sequences_,
          .logit_rows = logit_rows_};
}

}  // namespace selfsame
