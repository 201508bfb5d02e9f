#include "common/model/warm_up.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/errors.h"
#include "common/kv/sequence_state.h"

namespace selfsame {
namespace {

// Sequences of up to `sequence_rows` rows from position 0 on, each with blocks of its own, `rows`
// rows together or as many as the blocks hold; padded.
class WarmUpPass {
 public:
  WarmUpPass(int32_t rows, int32_t sequence_rows, int32_t padded_rows, int32_t block_count)
      : zeros_(static_cast<size_t>(padded_rows), 0), positions_(zeros_), blocks_(zeros_) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    int32_t next_block = 0;
    for (int32_t row = 0; row < rows; row += sequence_rows) {
      const int32_t count = std::min(sequence_rows, rows - row);
      if (BlocksFor(count) > block_count - next_block) break;
      sequences_.push_back({.first_row = row,
                            .row_count = count,
                            .first_position = 0,
                            .block_table = &blocks_[static_cast<size_t>(next_block)]});
      next_block += BlocksFor(count);
      for (int32_t i = 0; i < count; ++i) {
        positions_[static_cast<size_t>(row) + static_cast<size_t>(i)] = i;
        logit_rows_.push_back(row + i);
      }
    }
  }

  absl::Status Run(Model& model, KvCache& kv) const {
    const std::vector<SampleRow> greedy(logit_rows_.size());
    std::vector<SampledToken> sampled(logit_rows_.size());
    for (int32_t i = 0; i < model.ops().runs_to_settle(); ++i) {
      RETURN_IF_ERROR(model.Run({.row_count = static_cast<int32_t>(zeros_.size()),
                                 .token_ids = zeros_,
                                 .positions = positions_,
                                 .sequences = sequences_,
                                 .logit_rows = logit_rows_},
                                kv, greedy, sampled));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<int32_t> zeros_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> blocks_;  // a sequence has no more blocks than rows
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
};

int32_t MostSequences(const Model& model, const KvCache& kv, const WarmUpOptions& options) {
  const PassLimits& limits = model.limits();
  const int32_t most = std::min({limits.max_rows, limits.max_logit_rows, kv.block_count()});
  return options.max_sequences > 0 ? std::min(most, options.max_sequences) : most;
}

// Of the passes' rows but padding.
std::vector<int32_t> RowCounts(Model& model, const KvCache& kv, const WarmUpOptions& options) {
  // Where nothing is recorded, the self-test has run all there is at every rung.
  const bool records = model.ops().runs_to_settle() > 1;
  if (records && options.window_size > 0) return {options.rungs.begin(), options.rungs.end()};
  std::vector<int32_t> counts = model.ops().WarmUpRowCounts(MostSequences(model, kv, options));
  // Padded to one rung, passes of nearly equal row counts may still differ in what is recorded.
  if (records && !options.rungs.empty() && !counts.empty()) {
    counts.resize(static_cast<size_t>(counts.back()));
    std::iota(counts.begin(), counts.end(), 1);
  }
  return counts;
}

}  // namespace

absl::Status WarmUp(Model& model, KvCache& kv, const WarmUpOptions& options) {
  const int32_t sequence_rows =
      std::clamp(options.window_size, 1, std::max(1, model.limits().context_limit));
  for (const int32_t rows : RowCounts(model, kv, options)) {
    const auto rung = std::lower_bound(options.rungs.begin(), options.rungs.end(), rows);
    const int32_t padded_rows = rung == options.rungs.end() ? rows : *rung;
    const WarmUpPass pass(rows, sequence_rows, padded_rows, kv.block_count());
    RETURN_IF_ERROR(pass.Run(model, kv));
  }
  return absl::OkStatus();
}

}  // namespace selfsame
