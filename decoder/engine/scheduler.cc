#include "decoder/engine/scheduler.h"

#include <algorithm>

#include "common/check.h"

namespace selfsame::decoder {

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options) {
  SELFSAME_CHECK(options.max_batch_size > 0 && options.max_batch_size <= options.max_batch_tokens);
}

void Scheduler::Add(ScheduledRequest* request) { waiting_.push_back(request); }

void Scheduler::Remove(ScheduledRequest* request) {
  const size_t count = std::erase(waiting_, request) + std::erase(running_, request);
  SELFSAME_CHECK(count == 1);
  request->state->Truncate(0);
}

StepPlan Scheduler::Plan() {
  StepPlan plan;
  ChooseRunning(plan);
  // Whoever was just preempted would only be admitted again, and preempt the next; but a plan must
  // not stay empty for that.
  if (plan.preempted.empty() || plan.rows.empty()) Admit(plan);
  DistributeRows(plan);
  return plan;
}

bool Scheduler::IsFull(const StepPlan& plan) const {
  return static_cast<int32_t>(plan.rows.size()) == options_.max_batch_size;
}

void Scheduler::ChooseRunning(StepPlan& plan) {
  for (size_t i = 0; i < running_.size() && !IsFull(plan); ++i) {
    ScheduledRequest* request = running_[i];
    if (!request->is_ready) continue;
    bool has_room = request->state->Reserve(request->length);
    while (!has_room) {
      if (!PreemptIdle(request->never_waits, plan)) {
        ScheduledRequest* youngest = running_.back();
        Preempt(youngest, plan);
        if (youngest == request) break;
      }
      has_room = request->state->Reserve(request->length);
    }
    // A preempted request may have stood before this one.
    i = static_cast<size_t>(std::find(running_.begin(), running_.end(), request) -
                            running_.begin());
    if (has_room) plan.rows.push_back({request});
  }
}

void Scheduler::Admit(StepPlan& plan) {
  for (auto it = waiting_.begin(); it != waiting_.end() && !IsFull(plan);) {
    ScheduledRequest* request = *it;
    if (!request->is_ready) {
      ++it;
      continue;
    }
    const auto index = it - waiting_.begin();
    const size_t waiting_before = waiting_.size();
    while (!request->state->Reserve(request->length)) {
      // Nobody overtakes the head of the queue, however little room it needs. So those behind it
      // that never wait must not wait with it, nor may the device.
      const bool takes_any =
          plan.rows.empty() || std::any_of(waiting_.begin(), waiting_.end(),
                                           [](const auto* other) { return other->never_waits; });
      if (!PreemptIdle(takes_any, plan)) return;
    }
    it = waiting_.begin() + index + static_cast<int64_t>(waiting_.size() - waiting_before);
    it = waiting_.erase(it);
    running_.push_back(request);
    plan.admitted.push_back(request);
    std::erase(plan.preempted, request);
    plan.rows.push_back({request});
  }
}

void Scheduler::DistributeRows(StepPlan& plan) const {
  int32_t spare = options_.max_batch_tokens - static_cast<int32_t>(plan.rows.size());
  for (StepPlan::Rows& rows : plan.rows) {
    const int32_t needed = rows.request->length - rows.request->state->length();
    SELFSAME_CHECK(needed > 0);
    rows.row_count = std::min(needed, 1 + spare);
    rows.is_sampled = rows.row_count == needed;
    spare -= rows.row_count - 1;
  }
}

bool Scheduler::PreemptIdle(bool takes_any, StepPlan& plan) {
  const auto idle = std::find_if(running_.rbegin(), running_.rend(), [&](const auto* request) {
    return !request->is_ready && (takes_any || request->is_stalled);
  });
  if (idle == running_.rend()) return false;
  Preempt(*idle, plan);
  return true;
}

void Scheduler::Preempt(ScheduledRequest* request, StepPlan& plan) {
  request->state->Truncate(0);
  std::erase(running_, request);
  waiting_.push_front(request);
  plan.preempted.push_back(request);
}

}  // namespace selfsame::decoder
