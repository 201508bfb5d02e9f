#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "common/errors.h"
#include "kernels/float16.h"

namespace selfsame::cpu {
namespace {

template <typename T>
T LoadUnaligned(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

uint16_t LoadAsBFloat16(const MatrixPart& part, int64_t row, int64_t col) {
  const auto* data = static_cast<const std::byte*>(part.data);
  const int64_t index = row * part.row_stride + col;
  switch (part.dtype) {
    case DType::kBFloat16:
      return LoadUnaligned<uint16_t>(data + index * 2);
    case DType::kFloat16:
      return ToBFloat16(HalfToFloat(LoadUnaligned<uint16_t>(data + index * 2))).bits;
    case DType::kFloat32:
      return ToBFloat16(LoadUnaligned<float>(data + index * 4)).bits;
  }
  return 0;
}

// Writes one output's words into its panel; `words` is the output's first.
void PackRow(const MatrixPart& part, int64_t row, uint32_t* words) {
  for (int64_t col = 0; col < part.cols; col += 2) {
    const uint32_t even = LoadAsBFloat16(part, row, col);
    const uint32_t odd = col + 1 < part.cols ? LoadAsBFloat16(part, row, col + 1) : 0u;
    words[col / 2 * kPanelWidth] = odd << 16 | even;
  }
}

}  // namespace

void CpuPackedMatrix::CopyRow(int64_t row, BFloat16* out) const {
  const uint32_t* words = panel(row / kPanelWidth) + row % kPanelWidth;
  for (int64_t i = 0; i + 1 < k(); i += 2) {
    const uint32_t word = words[i / 2 * kPanelWidth];
    out[i] = {static_cast<uint16_t>(word)};
    out[i + 1] = {static_cast<uint16_t>(word >> 16)};
  }
  if (k() % 2 != 0) out[k() - 1] = {static_cast<uint16_t>(words[k() / 2 * kPanelWidth])};
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const MatrixPart> parts,
                                                   WeightArena& arena, ThreadPool& pool) {
  if (parts.empty())
    return InvalidArgumentError("parts", "a packed matrix needs at least one part");
  int64_t n = 0;
  const int64_t k = parts.front().cols;
  for (const MatrixPart& part : parts) {
    if (part.data == nullptr || part.rows <= 0 || part.cols <= 0 || part.row_stride < part.cols) {
      return InvalidArgumentError("parts", "a part is empty or its rows overlap");
    }
    if (part.cols != k) {
      return InvalidArgumentError("parts", "the parts of a packed matrix differ in columns");
    }
    n += part.rows;
  }

  const int64_t panel_count = (n + kPanelWidth - 1) / kPanelWidth;
  const size_t size_bytes =
      static_cast<size_t>(panel_count) * ((k + 1) / 2) * kPanelWidth * sizeof(uint32_t);
  ASSIGN_OR_RETURN(ArenaSlice slice, arena.Allocate(size_bytes));
  auto matrix = std::make_unique<CpuPackedMatrix>(n, k, std::move(slice));
  pool.Run(static_cast<int>(panel_count), [&](int panel, int) {
    uint32_t* words = matrix->mutable_panel(panel);
    const int64_t first = int64_t{panel} * kPanelWidth;
    int64_t part_first = 0;
    for (const MatrixPart& part : parts) {
      const int64_t begin = std::max(first, part_first);
      const int64_t end = std::min(first + kPanelWidth, part_first + part.rows);
      for (int64_t row = begin; row < end; ++row) {
        PackRow(part, row - part_first, words + (row - first));
      }
      part_first += part.rows;
    }
  });
  return std::unique_ptr<PackedMatrix>(std::move(matrix));
}

}  // namespace selfsame::cpu
