#include "decoder/engine/scheduler.h"

#include <algorithm>

#include "common/check.h"

namespace selfsame::decoder {
namespace {

bool Contains(const std::vector<ScheduledRequest*>& requests, const ScheduledRequest* request) {
  return std::find(requests.begin(), requests.end(), request) != requests.end();
}

}  // namespace

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
  Admit(plan);
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
    const bool has_room = MakeRoom(*request, plan);
    // A preempted request may have stood before this one.
    i = static_cast<size_t>(std::find(running_.begin(), running_.end(), request) -
                            running_.begin());
    if (has_room) plan.rows.push_back({request});
  }
}

bool Scheduler::MakeRoom(ScheduledRequest& request, StepPlan& plan) {
  while (!request.state->Reserve(request.length)) {
    ScheduledRequest* const youngest = running_.back();
    if (PreemptIdle(request.never_waits || youngest->never_waits, plan)) continue;
    Preempt(youngest, plan);
    if (youngest == &request) return false;
  }
  return true;
}

// Nobody overtakes the first that lacks room, however little it needs itself. So those behind it
// that never wait must not wait with it for idle requests' room, nor may the device.
void Scheduler::Admit(StepPlan& plan) {
  // Whoever was just preempted would only be admitted again, and preempt the next; but a plan must
  // not stay empty for that.
  const std::vector<ScheduledRequest*> excluded =
      plan.rows.empty() ? std::vector<ScheduledRequest*>() : plan.preempted;
  bool is_any_excluded = false;
  for (size_t i = 0; i < waiting_.size() && !IsFull(plan);) {
    ScheduledRequest* const request = waiting_[i];
    if (request->is_ready && Contains(excluded, request)) {
      if (request->never_waits) return;  // no idle request holds room any more
      is_any_excluded = true;
    }
    if (!request->is_ready || (is_any_excluded && !request->never_waits)) {
      ++i;
      continue;
    }
    const bool takes_any =
        plan.rows.empty() || std::any_of(waiting_.begin(), waiting_.end(),
                                         [](const auto* other) { return other->never_waits; });
    if (request->token_at != nullptr) {
      request->state->TakeCached(request->token_at, request->length - 1);
    }
    while (!request->state->Reserve(request->length)) {
      if (PreemptIdle(takes_any, plan)) continue;
      request->state->Truncate(0);  // who waits holds nothing
      return;
    }
    // Preempted requests may have come before it.
    const auto place = std::find(waiting_.begin(), waiting_.end(), request);
    i = static_cast<size_t>(place - waiting_.begin());
    waiting_.erase(place);
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
