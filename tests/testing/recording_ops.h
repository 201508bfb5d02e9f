#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/forwarding_ops.h"

namespace selfsame::testing {

struct RecordedPass {
  int32_t row_count = 0;
  std::vector<int32_t> sequence_rows;  // of each sequence
  int32_t logit_rows = 0;
  const BFloat16* kv = nullptr;  // of the last layer; null in a pass without attention
};

// Writes down the forward passes since the last ForgetPasses, as a device that records passes.
class RecordingOps final : public ForwardingOps {
 public:
  static constexpr int32_t kRunsToSettle = 2;

  // `passes` must outlive the object.
  RecordingOps(std::unique_ptr<Ops> ops, std::vector<RecordedPass>& passes)
      : ForwardingOps(std::move(ops)), passes_(passes) {}

  int32_t runs_to_settle() const override { return kRunsToSettle; }
  void ForgetPasses() override { passes_.clear(); }
  std::vector<int32_t> WarmUpRowCounts(int32_t max_rows) const override {
    return {1, std::min(max_rows, 5)};
  }
  void BeginPass(const Pass& pass) override {
    ForwardingOps::BeginPass(pass);
    RecordedPass recorded{.row_count = pass.row_count,
                          .sequence_rows = {},
                          .logit_rows = static_cast<int32_t>(pass.logit_rows.size())};
    for (const SequenceRows& sequence : pass.sequences) {
      recorded.sequence_rows.push_back(sequence.row_count);
    }
    passes_.push_back(std::move(recorded));
  }
  void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                 BFloat16* out) override {
    ForwardingOps::Attention(shape, qkv, kv, out);
    passes_.back().kv = kv.data;
  }

 private:
  std::vector<RecordedPass>& passes_;
};

}  // namespace selfsame::testing
