#pragma once

// What a pass says about its rows, on the device: written to one page-locked buffer and copied to
// one device buffer in two pieces, block tables and all that is before them. Both buffers are
// allocated once, for the largest pass, so an array has the same address in every pass.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

// Device addresses, which never change, and the pass's counts.
struct PassView {
  int32_t row_count = 0;  // padding included
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
  // Block tables of a pass have `max_table_entries` entries together, at most. RESOURCE_EXHAUSTED
  // without memory for the largest pass.
  static absl::StatusOr<PassBuffers> Create(int32_t max_rows, int32_t max_logit_rows,
                                            int64_t max_table_entries,
                                            const AttentionLimits& limits);

  // Lays the pass out and starts copying it, with padding rows up to `row_count`, and row 0 as
  // further logit row up to `logit_row_count`. Without a shape there is no attention work yet. The
  // previous copy must be done. Allocates nothing; an error is the device's. REQUIRES: a pass
  // within the limits given to Create.
  absl::Status Upload(const Pass& pass, int32_t row_count, int32_t logit_row_count,
                      const AttentionShape* shape, cudaStream_t stream);

  const PassView& view() const { return view_; }
  const AttentionWork& work() const { return work_; }

 private:
  // Byte offsets of the arrays in the buffers.
  struct Layout {
    size_t token_ids = 0;
    size_t positions = 0;
    size_t kv_slots = 0;
    size_t logit_rows = 0;
    size_t merges = 0;
    size_t items = 0;
    size_t block_tables = 0;
  };

  explicit PassBuffers(const AttentionLimits& limits) : limits_(limits) {}
  void BuildRows(const Pass& pass);
  // Copies `values` to the host buffer at `offset`, followed by zeros up to `count`; returns their
  // end.
  template <typename T>
  size_t Write(size_t offset, std::span<const T> values, size_t count);

  AttentionLimits limits_;
  Layout layout_;
  size_t max_table_entries_ = 0;
  PinnedMemory host_;
  Memory device_;
  PassView view_;
  AttentionWork work_;
  std::vector<int32_t> kv_slots_;
  size_t table_entries_ = 0;                  // of the pass
  std::vector<int32_t> block_table_offsets_;  // of each sequence
};

}  // namespace selfsame::cuda
