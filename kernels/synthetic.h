#pragma once

// Weights that are computed instead of read: a pure function of a tensor's key and an element's
// place, the same to the bit on every host and device. All arithmetic up to one float product is in
// integers, so that nothing depends on an order or a library.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bfloat16.h"

#ifdef __CUDACC__
#define SELFSAME_HOST_DEVICE __host__ __device__
#else
#define SELFSAME_HOST_DEVICE
#endif

namespace selfsame {

inline constexpr int kSyntheticImages = 4;
// `image_weight` and `noise_weight` count in units of 1 / kSyntheticWeightUnit.
inline constexpr int32_t kSyntheticWeightUnit = 1024;

// Rows [first_row, first_row + rows) and columns [first_col, first_col + cols) of a tensor that has
// `tensor_cols` columns. With S(key, index) a nearly normal integer (SyntheticSum) and `at` =
// row * tensor_cols + column, an element is
//   ordinary: bf16(float(S(key, at)) * scale)
//   head:     bf16(float(image_weight * sum over i of S(image_key, at of row image_i(row))
//                        + noise_weight * S(key, at)) * scale), rows from image_rows on are zero,
//             image_i(row) = (row * multipliers[i] + offsets[i]) mod image_rows.
struct SyntheticPart {
  uint64_t key = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first_row = 0;
  int64_t first_col = 0;
  int64_t tensor_cols = 0;
  float scale = 0.0f;

  int64_t image_rows = 0;  // 0: an ordinary tensor
  uint64_t image_key = 0;
  int32_t image_weight = 0;
  int32_t noise_weight = 0;
  int64_t multipliers[kSyntheticImages] = {};  // coprime with image_rows, below it
  int64_t offsets[kSyntheticImages] = {};
};

// 64 well mixed bits (the finaliser of SplitMix64: Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators", 2014).
SELFSAME_HOST_DEVICE inline uint64_t SyntheticHash(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// The sum of four uniform 16-bit numbers less its mean: in [-131070, 131070], variance
// (2^32 - 1) / 3.
SELFSAME_HOST_DEVICE inline int32_t SyntheticSum(uint64_t key, int64_t index) {
  const uint64_t word =
      SyntheticHash(key + (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u);
  const uint64_t sum =
      (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
  return static_cast<int32_t>(sum) - 131070;
}

// The element, not yet rounded to bf16. `row` and `col` count within the part.
SELFSAME_HOST_DEVICE inline float SyntheticElement(const SyntheticPart& part, int64_t row,
                                                   int64_t col) {
  row += part.first_row;
  col += part.first_col;
  int64_t sum = SyntheticSum(part.key, row * part.tensor_cols + col);
  if (part.image_rows > 0) {
    if (row >= part.image_rows) return 0.0f;
    int64_t images = 0;
    for (int i = 0; i < kSyntheticImages; ++i) {
      const int64_t image = (row * part.multipliers[i] + part.offsets[i]) % part.image_rows;
      images += SyntheticSum(part.image_key, image * part.tensor_cols + col);
    }
    sum = part.image_weight * images + part.noise_weight * sum;
  }
  return static_cast<float>(sum) * part.scale;
}

// The parts, stacked, on the host: [sum of rows, cols]. REQUIRES: all have the same cols.
inline std::vector<BFloat16> SyntheticRows(std::span<const SyntheticPart> parts) {
  std::vector<BFloat16> values;
  for (const SyntheticPart& part : parts) {
    values.reserve(values.size() + static_cast<size_t>(part.rows * part.cols));
    for (int64_t row = 0; row < part.rows; ++row) {
      for (int64_t col = 0; col < part.cols; ++col) {
        values.push_back(ToBFloat16(SyntheticElement(part, row, col)));
      }
    }
  }
  return values;
}

}  // namespace selfsame
