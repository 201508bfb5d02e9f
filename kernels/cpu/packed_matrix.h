#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace selfsame::cpu {

// Outputs in a panel.
inline constexpr int kPanelWidth = 32;

// W [n, k] as [ceil(n / 32)][ceil(k / 2)][32][2] bf16, missing outputs and an odd k filled with
// zero. A word holds two neighbouring k of one output, the even one in the low half, so 64 bytes
// are 16 outputs × 2 k: one shift and one mask widen them to float, and a bf16 dot product takes
// them as they are. Reading a panel is one sequential stream.
class CpuPackedMatrix : public PackedMatrix {
 public:
  CpuPackedMatrix(int64_t n, int64_t k, ArenaSlice slice)
      : PackedMatrix(n, k), slice_(std::move(slice)) {}

  int64_t pair_count() const { return (k() + 1) / 2; }
  int32_t panel_count() const {
    return static_cast<int32_t>((n() + kPanelWidth - 1) / kPanelWidth);
  }
  int64_t panel_words() const { return pair_count() * kPanelWidth; }

  // [pair_count][32] words. `panel` is in [0, panel_count()).
  const uint32_t* panel(int64_t index) const { return words() + index * panel_words(); }
  uint32_t* mutable_panel(int64_t index) { return words() + index * panel_words(); }

  // Copies row `row` of W to out[k].
  void CopyRow(int64_t row, BFloat16* out) const;

 private:
  uint32_t* words() const { return reinterpret_cast<uint32_t*>(slice_.data); }

  ArenaSlice slice_;
};

// Ops::PackMatrix of the CPU backend. INVALID_ARGUMENT when the parts do not fit together.
absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const MatrixPart> parts,
                                                   WeightArena& arena, ThreadPool& pool);

}  // namespace selfsame::cpu
