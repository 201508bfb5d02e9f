#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {

// Rows of a sequence. Its queries, keys and values are pure functions of (seed, position), so that
// the same position may be asked for in any pass.
struct CaseSequence {
  uint64_t seed = 0;
  int32_t first_position = 0;
  int32_t row_count = 1;
  int32_t padding_before = 0;  // padding rows in front of it
};

struct CaseResult {
  // Of each sequence: [row_count * output_width].
  std::vector<std::vector<BFloat16>> outputs;
  // Of all padding rows.
  std::vector<BFloat16> padding;
};

// Runs one pass of RopeAndStoreKv (without rotation) and Attention. Earlier positions lie in the
// cache already, in scattered blocks; everything else in it is NaN, as are the outputs and the
// queries of padding rows before the pass. `padding_after`: padding rows at the end.
CaseResult RunAttentionCase(Ops& ops, const AttentionShape& shape,
                            const std::vector<CaseSequence>& sequences, int32_t padding_after = 0);

// Attention of one position in double: [output_width].
std::vector<double> ReferenceAttention(const AttentionShape& shape, uint64_t seed,
                                       int32_t position);

}  // namespace selfsame::testing
