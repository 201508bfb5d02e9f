#include "kernels/cuda/gemm_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "kernels/cuda/gemm_bench.h"
#include "kernels/cuda/gemm_probe.h"
#include "kernels/cuda/stream_gemm.h"

namespace selfsame::cuda {
namespace {

// To be raised with every change of the rule that none of the numbers in CanonicalRule shows.
constexpr int kRuleVersion = 1;
constexpr std::array<int32_t, 7> kClassLadder = {512, 256, 128, 64, 32, 16, 8};
constexpr int kCandidates = 24;
constexpr int64_t kMaxSplitOutputs = 8192;
constexpr int64_t kMinSplitDepth = 8192;
constexpr int32_t kSlices = 2;  // of a product that is cut

absl::Status NoPlanError(const GemmShape& shape, int32_t rows) {
  return FailedPreconditionError(
      absl::StrCat("cuBLASLt has no algorithm for a product of n = ", shape.n, ", k = ", shape.k,
                   " that gives the same ", "bits at every row count (rows = ", rows, ")"));
}

struct ClassSearch {
  int chosen = -1;  // -1: no class covers the ladder
  int32_t splits = 1;
  std::vector<GemmAlgorithm> members;  // of the chosen class, as proposed along the ladder
};

// The largest row count that split products are tried at. With more rows than the ladder has they
// gain nothing, so only the canonical schedule, which must keep its order, runs them.
int32_t MostSplitRows(const GemmSearchOptions& options) {
  const int32_t ladder_rows = kClassLadder.front();
  return options.schedule == Schedule::kCanonical ? std::max(ladder_rows, options.rungs.back())
                                                  : ladder_rows;
}

// Sorts the proposals of the fixed ladder into classes. `bench` keeps the classes' references.
absl::StatusOr<ClassSearch> FindClass(const GemmLauncher& launcher, int32_t splits,
                                      GemmBench& bench) {
  struct Count {
    int members = 0;
    int rungs = 0;
  };
  std::array<Count, kMaxClasses> counts;
  std::array<std::vector<GemmAlgorithm>, kMaxClasses> members;
  for (const int32_t rows : kClassLadder) {
    std::array<bool, kMaxClasses> is_covered = {};
    for (const GemmAlgorithm& algorithm :
         launcher.Propose(bench.shape(), rows, splits, kCandidates)) {
      ASSIGN_OR_RETURN(const std::optional<int> found, bench.Classify(algorithm, rows));
      if (!found.has_value()) continue;
      const auto index = static_cast<size_t>(*found);
      ++counts[index].members;
      is_covered[index] = true;
      members[index].push_back(algorithm);
    }
    for (size_t i = 0; i < is_covered.size(); ++i) counts[i].rungs += is_covered[i] ? 1 : 0;
  }
  ClassSearch result;
  result.splits = splits;
  int most = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i].rungs < static_cast<int>(kClassLadder.size()) || counts[i].members <= most) {
      continue;
    }
    most = counts[i].members;
    result.chosen = static_cast<int>(i);
  }
  if (result.chosen >= 0) result.members = std::move(members[static_cast<size_t>(result.chosen)]);
  return result;
}

// Of `algorithms`, the fastest member of the class.
absl::StatusOr<std::optional<GemmPlan>> FastestMember(GemmBench& bench, int chosen, int32_t rows,
                                                      std::span<const GemmAlgorithm> algorithms) {
  std::vector<GemmAlgorithm> members;
  for (const GemmAlgorithm& algorithm : algorithms) {
    ASSIGN_OR_RETURN(const bool is_member, bench.IsMember(algorithm, rows, chosen));
    if (is_member) members.push_back(algorithm);
  }
  ASSIGN_OR_RETURN(const auto times, bench.Time(members, rows));
  std::optional<GemmPlan> best;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!times[i].has_value() || (best.has_value() && *times[i] >= best->time_us)) continue;
    best = GemmPlan{.rows = rows,
                    .algorithm = members[i],
                    .is_in_class = true,
                    .time_us = *times[i],
                    .best_time_us = *times[i]};
  }
  return best;
}

absl::StatusOr<std::vector<GemmPlan>> SearchCanonical(const GemmLauncher& launcher,
                                                      const GemmSearchOptions& options,
                                                      const ClassSearch& found, GemmBench& bench) {
  std::vector<GemmPlan> plans;
  for (const int32_t rows : options.rungs) {
    const auto proposed = launcher.Propose(bench.shape(), rows, found.splits, kCandidates);
    ASSIGN_OR_RETURN(std::optional<GemmPlan> plan,
                     FastestMember(bench, found.chosen, rows, proposed));
    if (!plan.has_value()) {
      ASSIGN_OR_RETURN(plan, FastestMember(bench, found.chosen, rows, found.members));
    }
    if (plan.has_value()) plans.push_back(*plan);
  }
  if (plans.empty() || plans.back().rows != options.rungs.back()) {
    return NoPlanError(bench.shape(), options.rungs.back());
  }
  return plans;
}

struct Timed {
  GemmAlgorithm algorithm;
  float time_us;
};

// The fast plan of a bucket: rows in (previous, rows].
absl::StatusOr<GemmPlan> ChooseFast(std::vector<Timed> timed, const GemmSearchOptions& options,
                                    int chosen, int32_t previous, int32_t rows, GemmBench& bench) {
  std::stable_sort(timed.begin(), timed.end(),
                   [](const Timed& a, const Timed& b) { return a.time_us < b.time_us; });
  std::optional<GemmPlan> best;
  for (const Timed& candidate : timed) {
    if (best.has_value() && candidate.time_us > best->time_us * (1.0 + options.class_slack)) {
      break;
    }
    ASSIGN_OR_RETURN(const bool runs, bench.Runs(candidate.algorithm, {previous + 1, rows - 1}));
    if (!runs) continue;
    ASSIGN_OR_RETURN(const bool is_member, bench.IsMember(candidate.algorithm, rows, chosen));
    if (best.has_value() && !is_member) continue;
    const float best_time_us = best.has_value() ? best->time_us : candidate.time_us;
    best = GemmPlan{.rows = rows,
                    .algorithm = candidate.algorithm,
                    .is_in_class = is_member,
                    .time_us = candidate.time_us,
                    .best_time_us = best_time_us};
    if (is_member) break;
  }
  if (!best.has_value()) return NoPlanError(bench.shape(), rows);
  return *best;
}

absl::StatusOr<std::vector<GemmPlan>> SearchFast(const GemmLauncher& launcher,
                                                 const GemmSearchOptions& options,
                                                 const ClassSearch& found, GemmBench& bench) {
  std::vector<GemmPlan> plans;
  int32_t previous = 0;
  for (const int32_t rows : options.rungs) {
    std::vector<Timed> timed;
    std::vector<GemmAlgorithm> algorithms =
        launcher.Propose(bench.shape(), rows, kAnyOrder, kCandidates);
    if (found.splits > 1 && rows <= MostSplitRows(options)) {
      const auto split = launcher.Propose(bench.shape(), rows, found.splits, kCandidates);
      algorithms.insert(algorithms.end(), split.begin(), split.end());
    }
    ASSIGN_OR_RETURN(const auto times, bench.Time(algorithms, rows));
    for (size_t i = 0; i < algorithms.size(); ++i) {
      if (times[i].has_value()) timed.push_back({algorithms[i], *times[i]});
    }
    ASSIGN_OR_RETURN(const GemmPlan plan,
                     ChooseFast(std::move(timed), options, found.chosen, previous, rows, bench));
    plans.push_back(plan);
    previous = rows;
  }
  return plans;
}

}  // namespace

std::vector<int32_t> RungsFor(int32_t max_rows, Schedule schedule) {
  std::vector<int32_t> rungs;
  // Fewer than 8 rows cost what 8 cost; only the fast schedule may run them with other kernels.
  const int32_t first = schedule == Schedule::kFast ? 1 : 8;
  // The verifier's rungs have a step between powers of two from 16 on.
  const int32_t first_between = schedule == Schedule::kFast ? 128 : 16;
  for (int32_t rows = first; rows < max_rows; rows *= 2) {
    rungs.push_back(rows);
    const int32_t between = rows / 2 * 3;
    if (rows >= first_between && between < max_rows) rungs.push_back(between);
  }
  rungs.push_back(max_rows);
  return rungs;
}

int32_t CanonicalSplits(const GemmShape& shape) {
  const bool is_narrow = shape.n <= kMaxSplitOutputs && shape.n % 8 == 0;
  // Slices start and end at multiples of 128 bytes.
  const bool is_long = shape.k >= kMinSplitDepth && shape.k % 128 == 0;
  return is_narrow && is_long ? kSlices : 1;
}

std::string CanonicalRule() {
  return absl::StrCat("version ", kRuleVersion, "; ladder ", absl::StrJoin(kClassLadder, ","), "; ",
                      kCandidates, " candidates and ", kStreamGemmConfigs, " of our own; ", kSlices,
                      " slices for n <= ", kMaxSplitOutputs, ", k >= ", kMinSplitDepth, "; ",
                      kProbeRows, " probes, ", kMaxClasses, " classes");
}

bool KeepsTheRule(const GemmShape& shape, std::span<const GemmPlan> plans) {
  return std::all_of(plans.begin(), plans.end(), [&](const GemmPlan& plan) {
    const int32_t splits = plan.algorithm.splits;
    return plan.is_in_class && splits == plans.front().algorithm.splits &&
           (splits == CanonicalSplits(shape) || splits == 1);
  });
}

absl::StatusOr<std::vector<GemmPlan>> SearchPlans(GemmLauncher& launcher, const GemmShape& shape,
                                                  const GemmSearchOptions& options) {
  const int32_t max_rows = std::max(kClassLadder.front(), options.rungs.back());
  for (const int32_t splits : {CanonicalSplits(shape), 1}) {
    RETURN_IF_ERROR(launcher.Reserve(shape, splits, MostSplitRows(options)));
    ASSIGN_OR_RETURN(GemmBench bench, GemmBench::Create(launcher, shape, max_rows));
    ASSIGN_OR_RETURN(const ClassSearch found, FindClass(launcher, splits, bench));
    if (found.chosen < 0) continue;
    return options.schedule == Schedule::kCanonical
               ? SearchCanonical(launcher, options, found, bench)
               : SearchFast(launcher, options, found, bench);
  }
  return NoPlanError(shape, kClassLadder.front());
}

absl::StatusOr<bool> ProvePlans(GemmLauncher& launcher, const GemmShape& shape,
                                const GemmSearchOptions& options, std::span<const GemmPlan> plans) {
  if (plans.empty() || plans.back().rows != options.rungs.back()) return false;
  if (options.schedule == Schedule::kCanonical && !KeepsTheRule(shape, plans)) return false;
  const int32_t max_rows = std::max(kProbeRows, options.rungs.back());
  for (const GemmPlan& plan : plans) {
    RETURN_IF_ERROR(launcher.Reserve(shape, plan.algorithm.splits, MostSplitRows(options)));
  }
  ASSIGN_OR_RETURN(GemmBench bench, GemmBench::Create(launcher, shape, max_rows));
  if (options.schedule == Schedule::kFast) {
    for (const GemmPlan& plan : plans) {
      ASSIGN_OR_RETURN(const bool runs, bench.Runs(plan.algorithm, {plan.rows}));
      if (!runs) return false;
    }
    return true;
  }
  // The last plan's algorithm, at a row count that holds all probes, makes the reference.
  ASSIGN_OR_RETURN(const std::optional<int> reference,
                   bench.Classify(plans.back().algorithm, max_rows));
  if (!reference.has_value()) return false;
  for (const GemmPlan& plan : plans) {
    ASSIGN_OR_RETURN(const bool is_member, bench.IsMember(plan.algorithm, plan.rows, *reference));
    if (!is_member) return false;
  }
  return true;
}

}  // namespace selfsame::cuda
