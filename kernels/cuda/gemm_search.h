#pragma once

// Measures GEMM algorithms on the device and chooses plans.
//
// Algorithms that accumulate over k in one go do so in one order; most of them in the same one. So
// do those that accumulate each of a fixed number of slices of k in one go, and split_sum.h adds
// the slices. Algorithms that give bit-identical results for a shape form a reduction class. A
// class is proved by running: 16 probe rows, half of them with heavy cancellation, must give the
// same bits in every slot of every rung, at a shifted offset, and beside rows of NaN. The canonical
// class is the one, among those of CanonicalSplits slices, that most algorithms belong to, counted
// over a fixed ladder of row counts, so that the choice does not depend on timing, nor on the rows
// a process is set up for.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm.h"
#include "kernels/schedule.h"

namespace selfsame::cuda {

// How to run up to `rows` rows.
struct GemmPlan {
  int32_t rows = 0;
  GemmAlgorithm algorithm = {};
  bool is_in_class = false;   // of the canonical reduction class
  float time_us = 0.0f;       // measured, weights read from memory
  float best_time_us = 0.0f;  // of the fastest algorithm tried, in the class or not
};

struct GemmSearchOptions {
  Schedule schedule = Schedule::kFast;
  double class_slack = 0.0;
  std::vector<int32_t> rungs;  // row counts, increasing
};

// Row counts that a canonical pass of at most `max_rows` rows may run at, increasing; the last is
// max_rows. For the fast schedule the same function gives the buckets that are measured.
std::vector<int32_t> RungsFor(int32_t max_rows, Schedule schedule);

// The number of slices that the canonical product of a shape is cut into; of n and k alone. A
// narrow W has too few outputs to occupy a device with few rows when each is one chain over a long
// k: two slices then take half the time. At 512 rows adding them costs a time that does not grow
// with k, so that for short k it would outweigh the gain.
int32_t CanonicalSplits(const GemmShape& shape);

// The rule by which the canonical class is chosen, as text: what SearchPlans gives is of this class
// and depends on nothing else but the device and the library. Plans that are kept, are kept with
// it.
std::string CanonicalRule();

// Whether the rule may have given these canonical plans: all of the class, and either of
// CanonicalSplits slices or unsplit.
bool KeepsTheRule(const GemmShape& shape, std::span<const GemmPlan> plans);

// One plan for each rung, by increasing rows. Canonical: the fastest member of the class; rungs
// without a member are left out. Fast: the fastest algorithm, or the fastest of the class where
// that is slower by class_slack at most. Where the device has no class of CanonicalSplits slices,
// the class is that of unsplit products. FAILED_PRECONDITION when the shape has no class, or the
// last rung no plan. Reserves room on the launcher for the plans it gives.
absl::StatusOr<std::vector<GemmPlan>> SearchPlans(GemmLauncher& launcher, const GemmShape& shape,
                                                  const GemmSearchOptions& options);

// Whether plans that were found earlier, under the same rule, still run, and, for the canonical
// schedule, keep it and still give equal bits. Reserves room for them.
absl::StatusOr<bool> ProvePlans(GemmLauncher& launcher, const GemmShape& shape,
                                const GemmSearchOptions& options, std::span<const GemmPlan> plans);

}  // namespace selfsame::cuda
