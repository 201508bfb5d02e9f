#include <algorithm>

#include "kernels/cpu/gemm.h"

namespace selfsame::cpu {
namespace {

constexpr int64_t kRowBlockBytes = 256 << 10;
constexpr int32_t kMinRowBlock = 8;
// Large enough to stream, small enough that threads end together.
constexpr int64_t kTaskWeightBytes = 64 << 10;
// Bytes that a tile streaming from memory looks ahead (BM_GemmKernel, cold).
constexpr int64_t kLookAheadBytes = 4096;
constexpr int64_t kPairBytes = kPanelWidth * sizeof(uint32_t);

}  // namespace

GemmTasks::GemmTasks(int32_t rows, int64_t row_bytes, const CpuPackedMatrix& w)
    : rows_(rows), panels_(w.panel_count()) {
  const auto fitting = static_cast<int32_t>(kRowBlockBytes / row_bytes);
  row_block_ = std::max(kMinRowBlock, fitting / kMinRowBlock * kMinRowBlock);
  row_blocks_ = (rows_ + row_block_ - 1) / row_block_;
  const int64_t panel_bytes = w.pair_count() * kPairBytes;
  panel_block_ = static_cast<int32_t>(std::max<int64_t>(1, kTaskWeightBytes / panel_bytes));
  panel_blocks_ = (panels_ + panel_block_ - 1) / panel_block_;
}

GemmRange GemmTasks::Range(int task) const {
  const int32_t row = task / panel_blocks_ * row_block_;
  const int32_t panel = task % panel_blocks_ * panel_block_;
  return {row, std::min(rows_, row + row_block_), panel, std::min(panels_, panel + panel_block_)};
}

RowTiles::RowTiles(const GemmRange& range, int32_t tile_rows, const CpuPackedMatrix& w,
                   int32_t panel)
    : row_(range.row_begin),
      row_end_(range.row_end),
      tile_count_((range.row_end - range.row_begin + tile_rows - 1) / tile_rows),
      panel_(reinterpret_cast<const char*>(w.panel(panel))),
      panel_bytes_(w.pair_count() * kPairBytes) {}

void RowTiles::Next() {
  row_ += rows();
  ++tile_;
}

PrefetchStream RowTiles::Prefetch() const {
  if (tile_count_ == 1) return {panel_ + kLookAheadBytes, kPairBytes};
  return {panel_ + panel_bytes_ + panel_bytes_ * tile_ / tile_count_, kPairBytes / tile_count_};
}

}  // namespace selfsame::cpu
