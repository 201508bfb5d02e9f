#pragma once

// Which kernel, how many chains, which splits. The canonical schedule picks among kernels with the
// same bits. Each choice is the fastest of its candidates, as bench/kernels measures them, while
// the weights are in the caches; from memory those of few rows are level but for noise. None looks
// at anything but shapes, thread count and what the CPU can do.

#include <cstdint>

#include "kernels/ops.h"

namespace selfsame::cpu {

enum class GemmKernel {
  kCanonical,  // one chain of multiply-adds a sum
  kFewRows,    // several chains of multiply-adds a sum
  kBf16Dot,    // bf16 dot products; one chain has the bits of kCanonical
};

struct GemmPlan {
  GemmKernel kernel = GemmKernel::kCanonical;
  int chains = 1;
};

// `has_bf16_dot` as HasBf16Dot(), `lanes` as GemmLanes().
GemmPlan PlanGemm(Schedule schedule, int32_t rows, int64_t k, bool has_bf16_dot, int lanes);

struct AttentionPlan {
  // Keys of a split, a multiple of the tile.
  int32_t split_keys = 0;
  // Whether the splits of a task are shared out over threads. The canonical schedule may do so too:
  // its splits are what they are, whoever scans them.
  bool shares_splits = false;
};

// `task_count`: tasks of the call (sequence, rows, kv head), `row_count` of the largest of them,
// `key_count` of the longest.
AttentionPlan PlanAttention(Schedule schedule, int32_t task_count, int32_t row_count,
                            int32_t key_count, int threads);

}  // namespace selfsame::cpu
