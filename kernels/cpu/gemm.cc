#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace selfsame::cpu::HWY_NAMESPACE {
namespace {

constexpr int kPanelVectors = kPanelWidth / kLanes;
// Rows of a register tile: with AVX-512, 16 of 32 registers accumulate.
constexpr int kTileRows = kLanes == 16 ? 8 : 3;

// Sums of kRows rows × 32 outputs, all of k. x: kRows rows at `x_stride`. out: [kRows][32].
template <int kRows>
HWY_INLINE void SumTile(const float* HWY_RESTRICT x, int64_t x_stride,
                        const uint32_t* HWY_RESTRICT panel, int64_t pair_count,
                        PrefetchStream ahead, float* HWY_RESTRICT out) {
  const FloatTag d;
  const WordTag words;
  const WordVec upper = hn::Set(words, 0xffff0000u);
  FloatVec acc[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = hn::Zero(d);
  }
  for (int64_t pair = 0; pair < pair_count; ++pair, ahead.address += ahead.step_bytes) {
    hwy::Prefetch(ahead.address);
    hwy::Prefetch(ahead.address + kCacheLineBytes);
    FloatVec even[kPanelVectors];
    FloatVec odd[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      const WordVec word = hn::Load(words, panel + pair * kPanelWidth + v * kLanes);
      even[v] = hn::BitCast(d, hn::ShiftLeft<16>(word));
      odd[v] = hn::BitCast(d, hn::And(word, upper));
    }
    for (int r = 0; r < kRows; ++r) {
      const FloatVec x1 = hn::Set(d, x[r * x_stride + pair * 2 + 1]);
      for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = hn::MulAdd(x1, odd[v], acc[r][v]);
    }
    for (int r = 0; r < kRows; ++r) {
      const FloatVec x0 = hn::Set(d, x[r * x_stride + pair * 2]);
      for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = hn::MulAdd(x0, even[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) {
      hn::Store(acc[r][v], d, out + r * kPanelWidth + v * kLanes);
    }
  }
}

// Writes one row's 32 sums of the panel whose first output is `first`.
HWY_INLINE void StoreRow(const float* sums, int64_t row, int64_t n, int64_t first,
                         const GemmOutput& out) {
  const int64_t count = std::min<int64_t>(kPanelWidth, n - first);
  if (out.logits != nullptr) {
    std::memcpy(out.logits + row * n + first, sums, count * sizeof(float));
    return;
  }
  BFloat16* y = out.y + row * n + first;
  if (count < kPanelWidth) {
    for (int64_t i = 0; i < count; ++i) {
      y[i] = ToBFloat16(out.bias == nullptr ? sums[i] : sums[i] + ToFloat(out.bias[first + i]));
    }
    return;
  }
  for (int v = 0; v < kPanelVectors; ++v) {
    FloatVec sum = hn::Load(FloatTag(), sums + v * kLanes);
    if (out.bias != nullptr) sum = hn::Add(sum, LoadBFloat16(out.bias + first + v * kLanes));
    StoreBFloat16(sum, y + v * kLanes);
  }
}

template <int kRows>
HWY_NOINLINE void PanelTile(const float* x, int64_t x_stride, const CpuPackedMatrix& w, int32_t row,
                            int32_t panel, PrefetchStream ahead, const GemmOutput& out) {
  HWY_ALIGN float sums[kRows * kPanelWidth];
  SumTile<kRows>(x + row * x_stride, x_stride, w.panel(panel), w.pair_count(), ahead, sums);
  for (int r = 0; r < kRows; ++r) {
    StoreRow(sums + r * kPanelWidth, row + r, w.n(), int64_t{panel} * kPanelWidth, out);
  }
}

void Gemm(const float* x, int64_t x_stride, const CpuPackedMatrix& w, const GemmRange& range,
          const GemmOutput& out) {
  for (int32_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
    for (RowTiles tile(range, kTileRows, w, panel); !tile.IsDone(); tile.Next()) {
      const int32_t row = tile.row();
      const PrefetchStream ahead = tile.Prefetch();
      switch (tile.rows()) {
        case 1:
          PanelTile<1>(x, x_stride, w, row, panel, ahead, out);
          break;
        case 2:
          PanelTile<2>(x, x_stride, w, row, panel, ahead, out);
          break;
        case 3:
          PanelTile<3>(x, x_stride, w, row, panel, ahead, out);
          break;
#if HWY_TARGET <= HWY_AVX3
        case 4:
          PanelTile<4>(x, x_stride, w, row, panel, ahead, out);
          break;
        case 5:
          PanelTile<5>(x, x_stride, w, row, panel, ahead, out);
          break;
        case 6:
          PanelTile<6>(x, x_stride, w, row, panel, ahead, out);
          break;
        case 7:
          PanelTile<7>(x, x_stride, w, row, panel, ahead, out);
          break;
        case 8:
          PanelTile<8>(x, x_stride, w, row, panel, ahead, out);
          break;
#endif
        default:
          HWY_ABORT("no tile of %d rows", tile.rows());
      }
    }
  }
}

// Rows [row, row + kRows) of a panel with kChains accumulators for each sum.
template <int kRows, int kChains>
HWY_NOINLINE void ChainTile(const float* x, int64_t x_stride, const CpuPackedMatrix& w, int32_t row,
                            int32_t panel, const GemmOutput& out) {
  const FloatTag d;
  const WordTag words;
  const WordVec upper = hn::Set(words, 0xffff0000u);
  const uint32_t* from = w.panel(panel);
  const float* rows = x + row * x_stride;
  FloatVec acc[kChains][kRows][kPanelVectors];
  for (int c = 0; c < kChains; ++c) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kPanelVectors; ++v) acc[c][r][v] = hn::Zero(d);
    }
  }
  const auto add_pair = [&](int64_t pair, int c) HWY_ATTR {
    for (int v = 0; v < kPanelVectors; ++v) {
      const WordVec word = hn::Load(words, from + pair * kPanelWidth + v * kLanes);
      const FloatVec even = hn::BitCast(d, hn::ShiftLeft<16>(word));
      const FloatVec odd = hn::BitCast(d, hn::And(word, upper));
      for (int r = 0; r < kRows; ++r) {
        const float* pair_x = rows + r * x_stride + pair * 2;
        acc[c][r][v] = hn::MulAdd(hn::Set(d, pair_x[0]), even, acc[c][r][v]);
        acc[c + 1][r][v] = hn::MulAdd(hn::Set(d, pair_x[1]), odd, acc[c + 1][r][v]);
      }
    }
  };
  int64_t pair = 0;
  for (; pair + kChains / 2 <= w.pair_count(); pair += kChains / 2) {
    for (int c = 0; c < kChains; c += 2) add_pair(pair + c / 2, c);
  }
  for (; pair < w.pair_count(); ++pair) add_pair(pair, 0);
  HWY_ALIGN float sums[kPanelWidth];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) {
      for (int width = kChains / 2; width >= 1; width /= 2) {
        for (int c = 0; c < width; ++c) acc[c][r][v] = hn::Add(acc[c][r][v], acc[c + width][r][v]);
      }
      hn::Store(acc[0][r][v], d, sums + v * kLanes);
    }
    StoreRow(sums, row + r, w.n(), int64_t{panel} * kPanelWidth, out);
  }
}

void FewRows(const float* x, int64_t x_stride, const CpuPackedMatrix& w, const GemmRange& range,
             int chains, const GemmOutput& out) {
  const int32_t rows = range.row_end - range.row_begin;
  for (int32_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
    if (rows == 1 && chains == 4) {
      ChainTile<1, 4>(x, x_stride, w, range.row_begin, panel, out);
    } else if (rows == 1 && chains == 2) {
      ChainTile<1, 2>(x, x_stride, w, range.row_begin, panel, out);
    } else if (rows == 2 && chains == 2) {
      ChainTile<2, 2>(x, x_stride, w, range.row_begin, panel, out);
    } else {
      HWY_ABORT("no tile of %d rows and %d chains", rows, chains);
    }
  }
}

int Lanes() { return kLanes; }

void Widen(const BFloat16* x, int32_t row_begin, int32_t row_end, int64_t k, int64_t stride,
           float* out) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const BFloat16* from = x + row * k;
    float* to = out + row * stride;
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes) hn::StoreU(LoadBFloat16(from + i), FloatTag(), to + i);
    for (; i < k; ++i) to[i] = ToFloat(from[i]);
    for (; i < stride; ++i) to[i] = 0.0f;
  }
}

}  // namespace
}  // namespace selfsame::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace selfsame::cpu {
namespace {
HWY_EXPORT(Gemm);
HWY_EXPORT(FewRows);
HWY_EXPORT(Lanes);
HWY_EXPORT(Widen);
}  // namespace

void WidenRows(const BFloat16* x, int32_t row_begin, int32_t row_end, int64_t k, int64_t stride,
               float* out) {
  HWY_DYNAMIC_DISPATCH(Widen)(x, row_begin, row_end, k, stride, out);
}

void GemmCanonical(const float* x, int64_t x_stride, const CpuPackedMatrix& w,
                   const GemmRange& range, const GemmOutput& out) {
  HWY_DYNAMIC_DISPATCH(Gemm)(x, x_stride, w, range, out);
}

void GemmFewRows(const float* x, int64_t x_stride, const CpuPackedMatrix& w, const GemmRange& range,
                 int chains, const GemmOutput& out) {
  HWY_DYNAMIC_DISPATCH(FewRows)(x, x_stride, w, range, chains, out);
}

int GemmLanes() { return HWY_DYNAMIC_DISPATCH(Lanes)(); }

}  // namespace selfsame::cpu
#endif
