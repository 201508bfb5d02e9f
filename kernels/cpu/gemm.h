#pragma once

// y = x · Wᵀ + bias over a range of panels and rows.
//
// Canonical: acc = 0; for each pair of neighbouring k, ascending, acc = fma(x[k + 1], w[n, k + 1],
// acc), then acc = fma(x[k], w[n, k], acc), in float (an odd k is followed by a zero); then + bias;
// then rounded to bf16. Odd before even is the order of the bf16 dot product of x86
// (gemm_bf16_dot.h), which so gives the same bits. SIMD lanes run over n and never over k, so
// neither the target nor the tiling can change a bit, and a row's result depends on that row alone.

#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/cpu/packed_matrix.h"

namespace selfsame::cpu {

// Where results go: exactly one of `y` and `logits` is set. Row stride: n.
struct GemmOutput {
  BFloat16* y = nullptr;           // [rows, n]
  float* logits = nullptr;         // [rows, n]
  const BFloat16* bias = nullptr;  // [n] or null; with y only
};

// Part of the output that one task computes.
struct GemmRange {
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t panel_begin = 0;
  int32_t panel_end = 0;
};

// Cuts a GEMM into ranges: blocks of rows whose inputs stay in the L2 cache while panels stream by,
// and within them runs of panels. What a range computes does not depend on the cut.
class GemmTasks {
 public:
  // `row_bytes`: of one row of x as the kernel reads it.
  GemmTasks(int32_t rows, int64_t row_bytes, const CpuPackedMatrix& w);

  int count() const { return row_blocks_ * panel_blocks_; }
  GemmRange Range(int task) const;

 private:
  int32_t rows_;
  int32_t panels_;
  int32_t row_block_;
  int32_t row_blocks_;
  int32_t panel_block_;
  int32_t panel_blocks_;
};

// What a register tile asks the cache for while it computes: per step of one pair of k, the two
// lines at `address`, which then advances by `step_bytes`.
struct PrefetchStream {
  const char* address;
  int64_t step_bytes;
};

// Walks the register tiles of one panel: at most `tile_rows` rows each and nearly equal heights,
// since a short last tile would cost almost as much as a full one.
class RowTiles {
 public:
  RowTiles(const GemmRange& range, int32_t tile_rows, const CpuPackedMatrix& w, int32_t panel);

  bool IsDone() const { return tile_ == tile_count_; }
  void Next();
  int32_t row() const { return row_; }
  int32_t rows() const {
    return (row_end_ - row_ + tile_count_ - tile_ - 1) / (tile_count_ - tile_);
  }

  // A single tile streams its panel from memory and looks ahead in it, further than the hardware
  // does. Several tiles find the panel in the cache and share out the next one among them, so that
  // memory is busy while they compute.
  PrefetchStream Prefetch() const;

 private:
  int32_t row_;
  int32_t row_end_;
  int32_t tile_ = 0;
  int32_t tile_count_;
  const char* panel_;
  int64_t panel_bytes_;
};

// out[r * stride + i] = x[r, i] as float for rows [row_begin, row_end); entries up to `stride` are
// zeroed. x: [rows, k].
void WidenRows(const BFloat16* x, int32_t row_begin, int32_t row_end, int64_t k, int64_t stride,
               float* out);

// x: [rows, k] float at `x_stride`, zero at index k where k is odd.
void GemmCanonical(const float* x, int64_t x_stride, const CpuPackedMatrix& w,
                   const GemmRange& range, const GemmOutput& out);

// Fast schedule, few rows: as GemmCanonical, but the pairs of k go round robin to chains / 2 pairs
// of accumulators, the even k of a pair to one and the odd k to the other; they are added in pairs
// at the end. Several chains hide the latency of the multiply-add. `chains`: 2 for up to 2 rows, 4
// for one.
void GemmFewRows(const float* x, int64_t x_stride, const CpuPackedMatrix& w, const GemmRange& range,
                 int chains, const GemmOutput& out);

// Floats of a vector of the target that the kernels above run on: 16, 8 or 4.
int GemmLanes();

}  // namespace selfsame::cpu
