#pragma once

// What a pass says about its rows, on the device: written to one page-locked buffer and copied to
// one device buffer, both allocated once.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

// Device addresses, valid until the next Upload.
struct PassView {
  int32_t row_count = 0;
  int32_t logit_row_count = 0;
  const int32_t* token_ids = nullptr;   // [row_count]
  const int32_t* positions = nullptr;   // [row_count]
  const int32_t* kv_slots = nullptr;    // [row_count]: block * 16 + place, -1 for padding
  const int32_t* logit_rows = nullptr;  // [logit_row_count]
  const AttentionItem* items = nullptr;
  const AttentionMerge* merges = nullptr;
  const int32_t* block_tables = nullptr;
};

class PassBuffers {
 public:
  static absl::StatusOr<PassBuffers> Create(int32_t max_rows, int32_t max_logit_rows,
                                            const AttentionLimits& limits);

  // Lays the pass out and starts copying it. Without a shape there is no attention work yet. The
  // previous copy must be done. Fails only when block tables outgrow the buffer and a larger one
  // cannot be had.
  absl::Status Upload(const Pass& pass, const AttentionShape* shape, cudaStream_t stream);

  const PassView& view() const { return view_; }
  const AttentionWork& work() const { return work_; }

 private:
  explicit PassBuffers(const AttentionLimits& limits) : limits_(limits) {}
  absl::Status Reserve(size_t size_bytes);
  void BuildRows(const Pass& pass);

  AttentionLimits limits_;
  PinnedMemory host_;
  Memory device_;
  PassView view_;
  AttentionWork work_;
  std::vector<int32_t> kv_slots_;
  std::vector<int32_t> block_tables_;
  std::vector<int32_t> block_table_offsets_;  // of each sequence
};

}  // namespace selfsame::cuda
