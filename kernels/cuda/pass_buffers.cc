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

}  // namespace

absl::StatusOr<PassBuffers> PassBuffers::Create(int32_t max_rows, int32_t max_logit_rows,
                                                const AttentionLimits& limits) {
  PassBuffers buffers(limits);
  const auto rows = static_cast<size_t>(max_rows);
  const auto merges = static_cast<size_t>(RoundedCount(max_rows));
  // Four sorts, each rounded up.
  const size_t items = 2 * (rows + static_cast<size_t>(limits.max_partial_rows));
  buffers.work_.items.reserve(items);
  for (auto& sorted : buffers.work_.sorted) sorted.reserve(items);
  buffers.work_.merges.reserve(merges);
  buffers.kv_slots_.reserve(rows);
  buffers.block_table_offsets_.reserve(rows);
  buffers.block_tables_.reserve(kBlockTableEntries);
  size_t size_bytes = 0;
  const auto place = [&size_bytes](size_t count, size_t element_bytes) {
    const size_t offset = size_bytes;
    size_bytes = Align(offset + count * element_bytes);
    return offset;
  };
  Layout& layout = buffers.layout_;
  layout.token_ids = place(rows, sizeof(int32_t));
  layout.positions = place(rows, sizeof(int32_t));
  layout.kv_slots = place(rows, sizeof(int32_t));
  layout.logit_rows = place(static_cast<size_t>(max_logit_rows), sizeof(int32_t));
  layout.merges = place(merges, sizeof(AttentionMerge));
  layout.items = place(items, sizeof(AttentionItem));
  layout.block_tables = size_bytes;
  RETURN_IF_ERROR(buffers.Reserve(kBlockTableEntries));
  return buffers;
}

absl::Status PassBuffers::Reserve(size_t table_entries) {
  if (table_entries <= table_entries_) return absl::OkStatus();
  const size_t size_bytes = layout_.block_tables + table_entries * sizeof(int32_t);
  ASSIGN_OR_RETURN(host_, PinnedMemory::Create(size_bytes));
  ASSIGN_OR_RETURN(device_, Memory::Create(size_bytes));
  table_entries_ = table_entries;
  const auto* device = device_.data<std::byte>();
  const auto at = [device](size_t offset) {
    return reinterpret_cast<const int32_t*>(device + offset);
  };
  view_.token_ids = at(layout_.token_ids);
  view_.positions = at(layout_.positions);
  view_.kv_slots = at(layout_.kv_slots);
  view_.logit_rows = at(layout_.logit_rows);
  view_.merges = reinterpret_cast<const AttentionMerge*>(device + layout_.merges);
  view_.items = reinterpret_cast<const AttentionItem*>(device + layout_.items);
  view_.block_tables = at(layout_.block_tables);
  return absl::OkStatus();
}

template <typename T>
size_t PassBuffers::Write(size_t offset, std::span<const T> values, size_t count) {
  std::byte* to = host_.data<std::byte>() + offset;
  if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
  std::memset(to + values.size_bytes(), 0, (count - values.size()) * sizeof(T));
  return offset + count * sizeof(T);
}

void PassBuffers::BuildRows(const Pass& pass) {
  kv_slots_.assign(static_cast<size_t>(view_.row_count), -1);
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

absl::Status PassBuffers::Upload(const Pass& pass, int32_t row_count, int32_t logit_row_count,
                                 const AttentionShape* shape, cudaStream_t stream) {
  view_.row_count = row_count;
  view_.logit_row_count = logit_row_count;
  BuildRows(pass);
  work_.items.clear();
  work_.merges.clear();
  if (shape != nullptr) {
    Pass padded = pass;
    padded.row_count = row_count;
    BuildAttentionWork(padded, block_table_offsets_, *shape, limits_, work_);
  }
  RETURN_IF_ERROR(Reserve(block_tables_.size()));
  const auto rows = static_cast<size_t>(row_count);
  const auto given_rows = static_cast<size_t>(pass.row_count);
  Write(layout_.token_ids, pass.token_ids.first(given_rows), rows);
  Write(layout_.positions, pass.positions.first(given_rows), rows);
  Write(layout_.kv_slots, std::span<const int32_t>(kv_slots_), rows);
  Write(layout_.logit_rows, pass.logit_rows, static_cast<size_t>(logit_row_count));
  Write(layout_.merges, std::span<const AttentionMerge>(work_.merges), work_.merges.size());
  const size_t items_end =
      Write(layout_.items, std::span<const AttentionItem>(work_.items), work_.items.size());
  const size_t tables_end =
      Write(layout_.block_tables, std::span<const int32_t>(block_tables_), block_tables_.size());
  // What lies between the last item and the block tables is not used.
  const auto copy = [&](size_t begin, size_t end) {
    return ToStatus(
        cudaMemcpyAsync(device_.data<std::byte>() + begin, host_.data<std::byte>() + begin,
                        end - begin, cudaMemcpyHostToDevice, stream),
        "copying a pass");
  };
  RETURN_IF_ERROR(copy(0, items_end));
  if (block_tables_.empty()) return absl::OkStatus();
  return copy(layout_.block_tables, tables_end);
}

}  // namespace selfsame::cuda
