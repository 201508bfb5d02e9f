#include "kernels/cpu/gemm_bf16_dot.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/check.h"
#include "kernels/cpu/flush_denormals.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include "hwy/base.h"
#endif

namespace selfsame::cpu {

#if defined(__x86_64__)
namespace {

constexpr int kLanes = 16;
constexpr int kPanelVectors = kPanelWidth / kLanes;
constexpr int32_t kTileRows = 8;

}  // namespace

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace {

inline __m512bh AsBf16(__m512i words) { return reinterpret_cast<__m512bh>(words); }

// Two neighbouring x of one row in every lane.
inline __m512i BroadcastPair(const BFloat16* x) {
  int pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

// acc + x[1] · w[1] + x[0] · w[0], as the instruction adds them.
float DotOnce(float acc, const BFloat16* x, const BFloat16* w) {
  return _mm512_cvtss_f32(
      _mm512_dpbf16_ps(_mm512_set1_ps(acc), AsBf16(BroadcastPair(x)), AsBf16(BroadcastPair(w))));
}

inline void StoreVector(__m512 sum, int64_t row, int64_t n, int64_t first, const GemmOutput& out) {
  const int64_t count = std::min<int64_t>(kLanes, n - first);
  if (count <= 0) return;
  const auto mask = static_cast<__mmask16>((1u << count) - 1u);
  if (out.logits != nullptr) {
    _mm512_mask_storeu_ps(out.logits + row * n + first, mask, sum);
    return;
  }
  if (out.bias != nullptr) {
    const __m256i bias = _mm256_maskz_loadu_epi16(mask, out.bias + first);
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_maskz_slli_epi32(
                                 mask, _mm512_maskz_cvtepu16_epi32(mask, bias), 16)));
  }
  const __m256bh rounded = _mm512_cvtneps_pbh(sum);
  _mm256_mask_storeu_epi16(out.y + row * n + first, mask, reinterpret_cast<__m256i>(rounded));
}

template <int kRows, int kChains>
void PanelTile(const BFloat16* x, const CpuPackedMatrix& w, int32_t row, int32_t panel,
               PrefetchStream ahead, const GemmOutput& out) {
  const int64_t k = w.k();
  const int64_t pair_count = k / 2;
  const uint32_t* words = w.panel(panel);
  const BFloat16* rows = x + row * k;
  __m512 acc[kChains][kRows][kPanelVectors];
  for (auto& chain : acc) {
    for (auto& vectors : chain) {
      for (__m512& vector : vectors) vector = _mm512_setzero_ps();
    }
  }
  int64_t pair = 0;
  for (; pair + kChains <= pair_count; pair += kChains) {
    for (int c = 0; c < kChains; ++c) {
      const uint32_t* from = words + (pair + c) * kPanelWidth;
      const __m512i low = _mm512_load_si512(from);
      const __m512i high = _mm512_load_si512(from + kLanes);
      _mm_prefetch(ahead.address, _MM_HINT_T0);
      _mm_prefetch(ahead.address + kCacheLineBytes, _MM_HINT_T0);
      ahead.address += ahead.step_bytes;
      for (int r = 0; r < kRows; ++r) {
        const __m512i both = BroadcastPair(rows + r * k + (pair + c) * 2);
        acc[c][r][0] = _mm512_dpbf16_ps(acc[c][r][0], AsBf16(low), AsBf16(both));
        acc[c][r][1] = _mm512_dpbf16_ps(acc[c][r][1], AsBf16(high), AsBf16(both));
      }
    }
  }
  for (; pair < pair_count; ++pair) {
    for (int r = 0; r < kRows; ++r) {
      const __m512i both = BroadcastPair(rows + r * k + pair * 2);
      for (int v = 0; v < kPanelVectors; ++v) {
        const __m512i from = _mm512_load_si512(words + pair * kPanelWidth + v * kLanes);
        acc[0][r][v] = _mm512_dpbf16_ps(acc[0][r][v], AsBf16(from), AsBf16(both));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) {
      for (int width = kChains / 2; width >= 1; width /= 2) {
        for (int c = 0; c < width; ++c) {
          acc[c][r][v] = _mm512_add_ps(acc[c][r][v], acc[c + width][r][v]);
        }
      }
      StoreVector(acc[0][r][v], row + r, w.n(), int64_t{panel} * kPanelWidth + v * kLanes, out);
    }
  }
}

using TileFunction = void (*)(const BFloat16*, const CpuPackedMatrix&, int32_t, int32_t,
                              PrefetchStream, const GemmOutput&);

constexpr TileFunction kTiles[kTileRows] = {PanelTile<1, 1>, PanelTile<2, 1>, PanelTile<3, 1>,
                                            PanelTile<4, 1>, PanelTile<5, 1>, PanelTile<6, 1>,
                                            PanelTile<7, 1>, PanelTile<8, 1>};
constexpr TileFunction kTwoChainTiles[] = {PanelTile<1, 2>, PanelTile<2, 2>, PanelTile<3, 2>,
                                           PanelTile<4, 2>};
constexpr TileFunction kFourChainTiles[] = {PanelTile<1, 4>, PanelTile<2, 4>};

// Null when there is no such tile: 16 of the 32 registers are for sums.
TileFunction FindTile(int32_t rows, int chains) {
  switch (chains) {
    case 1:
      return rows <= kTileRows ? kTiles[rows - 1] : nullptr;
    case 2:
      return rows <= 4 ? kTwoChainTiles[rows - 1] : nullptr;
    case 4:
      return rows <= 2 ? kFourChainTiles[rows - 1] : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace

HWY_POP_ATTRIBUTES

namespace {

bool CpuHasInstruction() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq")) {
    return false;
  }
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 5)) != 0;
}

// Compares the instruction with two fused multiply-adds on operands of all magnitudes, half of them
// cancelling almost entirely.
bool RoundsLikeMultiplyAdds() {
  constexpr int kProbes = 4096;
  const FlushDenormals flush;
  uint64_t random = 1;
  for (int probe = 0; probe < kProbes; ++probe) {
    BFloat16 values[4];
    for (BFloat16& value : values) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      value.bits = static_cast<uint16_t>(random >> 48);
      // Every other probe stays near 1.
      if (probe % 2 == 0) value.bits = static_cast<uint16_t>((value.bits & 0x81ffu) | 0x3e00u);
    }
    const float x0 = ToFloat(values[0]);
    const float x1 = ToFloat(values[1]);
    const float w0 = ToFloat(values[2]);
    const float w1 = ToFloat(values[3]);
    const float near = -(x0 * w0 + x1 * w1) * 1.0000001f;
    const float acc = probe % 4 < 2 ? near : x1 * w0;
    const float expected = std::fma(x0, w0, std::fma(x1, w1, acc));
    const float got = DotOnce(acc, values, values + 2);
    if (std::isnan(expected) && std::isnan(got)) continue;
    if (std::bit_cast<uint32_t>(expected) != std::bit_cast<uint32_t>(got)) return false;
  }
  return true;
}

}  // namespace

bool HasBf16Dot() {
  static const bool has_it = CpuHasInstruction() && RoundsLikeMultiplyAdds();
  return has_it;
}

void GemmBf16Dot(const BFloat16* x, const CpuPackedMatrix& w, const GemmRange& range, int chains,
                 const GemmOutput& out) {
  SELFSAME_CHECK(w.k() % 2 == 0);
  for (int32_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
    for (RowTiles tile(range, kTileRows, w, panel); !tile.IsDone(); tile.Next()) {
      const TileFunction function = FindTile(tile.rows(), chains);
      SELFSAME_CHECK(function != nullptr);
      function(x, w, tile.row(), panel, tile.Prefetch(), out);
    }
  }
}

#else

bool HasBf16Dot() { return false; }

void GemmBf16Dot(const BFloat16*, const CpuPackedMatrix&, const GemmRange&, int,
                 const GemmOutput&) {
  SELFSAME_CHECK(HasBf16Dot());
}

#endif

}  // namespace selfsame::cpu
