#include "kernels/cpu/fast_plan.h"

#include <numeric>

#include "kernels/cpu/attention.h"

namespace selfsame::cpu {

// A sum is a chain of dependent instructions, and a core keeps two of them going for each of 4
// (fused multiply-add) to 6 (dot product) cycles: with few rows there are too few sums in a
// register tile, so each is split over k into several chains until about 16 registers accumulate.
// BM_GemmKernel compares the candidates.
GemmPlan PlanGemm(Schedule schedule, int32_t rows, int64_t k, bool has_bf16_dot, int lanes) {
  if (schedule == Schedule::kCanonical) {
    return {has_bf16_dot && k % 2 == 0 ? GemmKernel::kBf16Dot : GemmKernel::kCanonical, 1};
  }
  if (has_bf16_dot && k % 2 == 0) {
    if (rows <= 2) return {GemmKernel::kBf16Dot, 4};
    if (rows <= 4) return {GemmKernel::kBf16Dot, 2};
    return {GemmKernel::kBf16Dot, 1};
  }
  if (lanes == 16 && rows == 1) return {GemmKernel::kFewRows, 4};
  if (lanes == 16 && rows == 2) return {GemmKernel::kFewRows, 2};
  if (rows == 1) return {GemmKernel::kFewRows, 2};
  return {GemmKernel::kCanonical, 1};
}

namespace {

// With this many tasks a thread the last ones even out the load by themselves.
constexpr int32_t kPlentyOfTasks = 6;
// Shorter splits cost more to fork, join and merge than they save.
constexpr int32_t kMinSharedSplitKeys = 1024;
// One split, however long the context.
constexpr int32_t kWholeContext = 1 << 30;

}  // namespace

// Decoding one sequence has as many tasks as key heads, say three for two threads: a long context
// is cut so that every thread gets as much. Tasks of many rows run over long contexts faster in the
// canonical splits. BM_Attention compares the candidates.
AttentionPlan PlanAttention(Schedule schedule, int32_t task_count, int32_t row_count,
                            int32_t key_count, int threads) {
  const bool is_uneven = task_count < kPlentyOfTasks * threads && task_count % threads != 0;
  const bool can_share = threads > 1 && row_count == 1 && is_uneven;
  if (schedule == Schedule::kCanonical) {
    return {kSplitKeys, can_share && key_count >= 2 * kMinSharedSplitKeys};
  }
  if (row_count > 1 && key_count > 2 * kSplitKeys) return {kSplitKeys, false};
  if (!can_share) return {kWholeContext, false};
  const int32_t splits = threads / std::gcd(task_count, threads);
  const int32_t keys = (key_count + splits - 1) / splits;
  if (keys < kMinSharedSplitKeys) return {kWholeContext, false};
  return {(keys + kTileKeys - 1) / kTileKeys * kTileKeys, true};
}

}  // namespace selfsame::cpu
