#include "verifier/engine/pass_builder.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace selfsame::verifier {
namespace {

int64_t RowsOf(const Demand& demand) {
  int64_t rows = demand.prefill_rows;
  if (rows > 0) return rows;
  for (const int32_t window : demand.window_rows) rows += window;
  return rows;
}

bool HasWindows(const Demand& demand) {
  return demand.prefill_rows == 0 && !demand.window_rows.empty();
}

// The first windows of `demand` that fit into `room` rows.
PlannedRun TakeWindows(const Demand& demand, int32_t room) {
  PlannedRun run{.order = demand.order};
  for (const int32_t rows : demand.window_rows) {
    // A window without rows lies behind an end, which an earlier one will reach.
    if (rows == 0 || run.row_count + rows > room) break;
    run.row_count += rows;
    ++run.window_count;
  }
  return run;
}

}  // namespace

PassPlan PassBuilder::Build(std::span<const Demand> demands, SteadyTime now) {
  std::vector<const Demand*> oldest_first;
  int64_t rows = 0;
  int64_t prefill_rows = 0;
  for (const Demand& demand : demands) {
    if (RowsOf(demand) == 0) continue;
    oldest_first.push_back(&demand);
    rows += RowsOf(demand);
    prefill_rows += demand.prefill_rows;
  }
  if (oldest_first.empty()) return {};
  std::sort(oldest_first.begin(), oldest_first.end(), [](const auto* a, const auto* b) {
    return std::pair(a->waiting_since, a->order) < std::pair(b->waiting_since, b->order);
  });
  const SteadyTime budget_end = oldest_first.front()->waiting_since + max_wait_;
  if (rows < max_rows_ && budget_end > now) return {.runs = {}, .wake_at = budget_end};

  PassPlan plan;
  const int32_t quarter = (max_rows_ + 3) / 4;
  int32_t room = max_rows_ - static_cast<int32_t>(std::min<int64_t>(prefill_rows, quarter));
  bool is_oldest_window = true;
  for (const Demand* demand : oldest_first) {
    if (!HasWindows(*demand)) continue;
    if (is_oldest_window && demand->window_rows.front() > room && !prefill_is_owed_) {
      room = max_rows_;
      prefill_is_owed_ = true;
    } else if (is_oldest_window) {
      prefill_is_owed_ = false;
    }
    is_oldest_window = false;
    const PlannedRun run = TakeWindows(*demand, room);
    if (run.window_count == 0) continue;
    room -= run.row_count;
    plan.runs.push_back(run);
  }
  int32_t used = 0;
  for (const PlannedRun& run : plan.runs) used += run.row_count;
  for (const Demand* demand : oldest_first) {
    const int32_t taken = std::min(demand->prefill_rows, max_rows_ - used);
    if (taken == 0) continue;
    used += taken;
    plan.runs.push_back({.order = demand->order, .prefill_rows = taken, .row_count = taken});
  }
  SELFSAME_CHECK(!plan.runs.empty() && used <= max_rows_);
  return plan;
}

int32_t RungFor(std::span<const int32_t> rungs, int32_t rows) {
  const auto it = std::lower_bound(rungs.begin(), rungs.end(), rows);
  SELFSAME_CHECK(it != rungs.end());
  return *it;
}

}  // namespace selfsame::verifier
