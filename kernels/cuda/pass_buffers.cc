#include "kernels/cuda/pass_buffers.h"

#include <algorithm>
#include <cstring>

#include "common/errors.h"

namespace selfsame::cuda {
namespace {

constexpr size_t kAlignment = 16;
// Room for this many block table entries to begin with: 1 MiB, 4 million positions.
constexpr size_t kBlockTableEntries = size_t{1} << 18;

size_t Align(size_t size_bytes) { return (size_bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Appends arrays to the host buffer and gives their addresses in the device buffer.
class Packer {
 public:
  Packer(std::byte* host, const std::byte* device) : host_(host), device_(device) {}

  template <typename T>
  const T* Add(std::span<const T> values) {
    const size_t offset = size_bytes_;
    if (!values.empty()) std::memcpy(host_ + offset, values.data(), values.size_bytes());
    size_bytes_ = Align(offset + values.size_bytes());
    return reinterpret_cast<const T*>(device_ + offset);
  }
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* host_;
  const std::byte* device_;
  size_t size_bytes_ = 0;
};

}  // namespace

absl::StatusOr<PassBuffers> PassBuffers::Create(int32_t max_rows, int32_t max_logit_rows,
                                                const AttentionLimits& limits) {
  PassBuffers buffers(limits);
  const auto rows = static_cast<size_t>(max_rows);
  const size_t items = rows + static_cast<size_t>(limits.max_partial_rows);
  buffers.work_.items.reserve(items);
  for (auto& sorted : buffers.work_.sorted) sorted.reserve(items);
  buffers.work_.merges.reserve(rows);
  buffers.kv_slots_.reserve(rows);
  buffers.block_table_offsets_.reserve(rows);
  buffers.block_tables_.reserve(kBlockTableEntries);
  RETURN_IF_ERROR(buffers.Reserve(
      (3 * rows + static_cast<size_t>(max_logit_rows) + kBlockTableEntries) * sizeof(int32_t) +
      items * sizeof(AttentionItem) + rows * sizeof(AttentionMerge) + 8 * kAlignment));
  return buffers;
}

absl::Status PassBuffers::Reserve(size_t size_bytes) {
  if (size_bytes <= host_.size_bytes()) return absl::OkStatus();
  ASSIGN_OR_RETURN(host_, PinnedMemory::Create(size_bytes));
  ASSIGN_OR_RETURN(device_, Memory::Create(size_bytes));
  return absl::OkStatus();
}

void PassBuffers::BuildRows(const Pass& pass) {
  kv_slots_.assign(static_cast<size_t>(pass.row_count), -1);
  block_tables_.clear();
  block_table_offsets_.clear();
  for (const SequenceRows& sequence : pass.sequences) {
    const int32_t length = sequence.first_position + sequence.row_count;
    block_table_offsets_.push_back(static_cast<int32_t>(block_tables_.size()));
    block_tables_.insert(block_tables_.end(), sequence.block_table,
                         sequence.block_table + (length + kKvBlockTokens - 1) / kKvBlockTokens);
    for (int32_t i = 0; i < sequence.row_count; ++i) {
      const int32_t position = sequence.first_position + i;
      kv_slots_[static_cast<size_t>(sequence.first_row + i)] =
          sequence.block_table[position / kKvBlockTokens] * kKvBlockTokens +
          position % kKvBlockTokens;
    }
  }
}

absl::Status PassBuffers::Upload(const Pass& pass, const AttentionShape* shape,
                                 cudaStream_t stream) {
  BuildRows(pass);
  work_.items.clear();
  work_.merges.clear();
  if (shape != nullptr) {
    BuildAttentionWork(pass, block_table_offsets_, *shape, limits_, work_);
  }
  const size_t entries =
      3 * static_cast<size_t>(pass.row_count) + pass.logit_rows.size() + block_tables_.size();
  RETURN_IF_ERROR(Reserve(entries * sizeof(int32_t) + work_.items.size() * sizeof(AttentionItem) +
                          work_.merges.size() * sizeof(AttentionMerge) + 8 * kAlignment));
  Packer packer(host_.data<std::byte>(), device_.data<std::byte>());
  const auto rows = static_cast<size_t>(pass.row_count);
  view_.row_count = pass.row_count;
  view_.logit_row_count = static_cast<int32_t>(pass.logit_rows.size());
  view_.token_ids = packer.Add(pass.token_ids.first(rows));
  view_.positions = packer.Add(pass.positions.first(rows));
  view_.kv_slots = packer.Add(std::span<const int32_t>(kv_slots_));
  view_.logit_rows = packer.Add(pass.logit_rows);
  view_.items = packer.Add(std::span<const AttentionItem>(work_.items));
  view_.merges = packer.Add(std::span<const AttentionMerge>(work_.merges));
  view_.block_tables = packer.Add(std::span<const int32_t>(block_tables_));
  return ToStatus(cudaMemcpyAsync(device_.data(), host_.data(), packer.size_bytes(),
                                  cudaMemcpyHostToDevice, stream),
                  "copying a pass");
}

}  // namespace selfsame::cuda
