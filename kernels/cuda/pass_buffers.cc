#include "kernels/cuda/pass_buffers.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/errors.h"

namespace selfsame::cuda {
namespace {

constexpr size_t kAlignment = 16;

size_t Align(size_t size_bytes) { return (size_bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

absl::StatusOr<PassBuffers> PassBuffers::Create(int32_t max_rows, int32_t max_logit_rows,
                                                int64_t max_table_entries,
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
  buffers.max_table_entries_ = static_cast<size_t>(max_table_entries);
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
  layout.block_tables = place(buffers.max_table_entries_, sizeof(int32_t));
  ASSIGN_OR_RETURN(buffers.host_, PinnedMemory::Create(size_bytes));
  ASSIGN_OR_RETURN(buffers.device_, Memory::Create(size_bytes));
  const auto* device = buffers.device_.data<std::byte>();
  const auto at = [device](size_t offset) {
    return reinterpret_cast<const int32_t*>(device + offset);
  };
  buffers.view_ = {.token_ids = at(layout.token_ids),
                   .positions = at(layout.positions),
                   .kv_slots = at(layout.kv_slots),
                   .logit_rows = at(layout.logit_rows),
                   .items = reinterpret_cast<const AttentionItem*>(device + layout.items),
                   .merges = reinterpret_cast<const AttentionMerge*>(device + layout.merges),
                   .block_tables = at(layout.block_tables)};
  return buffers;
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
  table_entries_ = 0;
  block_table_offsets_.clear();
  for (const SequenceRows& sequence : pass.sequences) {
    const int32_t length = sequence.first_position + sequence.row_count;
    const auto entries = static_cast<size_t>((length + kKvBlockTokens - 1) / kKvBlockTokens);
    SELFSAME_CHECK(entries <= max_table_entries_ - table_entries_);
    block_table_offsets_.push_back(static_cast<int32_t>(table_entries_));
    Write(layout_.block_tables + table_entries_ * sizeof(int32_t),
          std::span(sequence.block_table, entries), entries);
    table_entries_ += entries;
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
  const auto rows = static_cast<size_t>(row_count);
  const auto given_rows = static_cast<size_t>(pass.row_count);
  Write(layout_.token_ids, pass.token_ids.first(given_rows), rows);
  Write(layout_.positions, pass.positions.first(given_rows), rows);
  Write(layout_.kv_slots, std::span<const int32_t>(kv_slots_), rows);
  Write(layout_.logit_rows, pass.logit_rows, static_cast<size_t>(logit_row_count));
  Write(layout_.merges, std::span<const AttentionMerge>(work_.merges), work_.merges.size());
  const size_t items_end =
      Write(layout_.items, std::span<const AttentionItem>(work_.items), work_.items.size());
  // What lies between the last item and the block tables is not used.
  const auto copy = [&](size_t begin, size_t end) {
    return ToStatus(
        cudaMemcpyAsync(device_.data<std::byte>() + begin, host_.data<std::byte>() + begin,
                        end - begin, cudaMemcpyHostToDevice, stream),
        "copying a pass");
  };
  RETURN_IF_ERROR(copy(0, items_end));
  if (table_entries_ == 0) return absl::OkStatus();
  return copy(layout_.block_tables, layout_.block_tables + table_entries_ * sizeof(int32_t));
}

}  // namespace selfsame::cuda
