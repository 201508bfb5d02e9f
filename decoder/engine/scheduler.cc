#include "decoder/engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace selfsame::decoder {
namespace {

bool Contains(const std::vector<ScheduledRequest*>& requests, const ScheduledRequest* request) {
  return std::find(requests.begin(), requests.end(), request) != requests.end();
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options) {
  SELFSAME_CHECK(options.max_batch_size > 0 && options.max_batch_size <= options.max_batch_tokens);
  SELFSAME_CHECK(options.prefill_chunk >= 0);
  if (options_.prefill_chunk == 0) {
    options_.prefill_chunk = std::max(1, options.max_batch_tokens / 2);
  }
}

bool Scheduler::Precedes(const ScheduledRequest* a, const ScheduledRequest* b) {
  return std::pair(a->rank, a->number) < std::pair(b->rank, b->number);
}

void Scheduler::Insert(std::vector<ScheduledRequest*>& requests, ScheduledRequest* request) {
  requests.insert(std::upper_bound(requests.begin(), requests.end(), request, Precedes), request);
}

void Scheduler::Add(ScheduledRequest* request) {
  request->number = next_number_++;
  Insert(waiting_, request);
}

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
    TakeCached(*request);
    const bool has_room = MakeRoom(*request, plan);
    // A preempted request may have stood before this one.
    i = static_cast<size_t>(std::find(running_.begin(), running_.end(), request) -
                            running_.begin());
    if (has_room) plan.rows.push_back({request});
  }
}

bool Scheduler::MakeRoom(ScheduledRequest& request, StepPlan& plan) {
  while (!request.state->Reserve(request.length)) {
    ScheduledRequest* const last = running_.back();
    if (PreemptIdle(request.never_waits || last->never_waits, plan)) continue;
    Preempt(last, plan);
    if (last == &request) return false;
  }
  return true;
}

// Those behind the first that never wait must not wait with it for room that idle requests hold,
// nor may the device.
void Scheduler::Admit(StepPlan& plan) {
  // Whoever was just preempted would only be admitted again, and preempt the next; but a plan must
  // not stay empty for that.
  const std::vector<ScheduledRequest*> excluded =
      plan.rows.empty() ? std::vector<ScheduledRequest*>() : plan.preempted;
  bool is_any_excluded = false;
  for (size_t i = 0; i < waiting_.size();) {
    ScheduledRequest* const request = waiting_[i];
    // In a full batch it takes the place of the last, if that comes after it.
    if (IsFull(plan) && !Precedes(request, plan.rows.back().request)) return;
    if (request->is_ready && Contains(excluded, request)) {
      if (request->never_waits) return;  // no idle request holds room any more
      is_any_excluded = true;
    }
    if (!request->is_ready || (is_any_excluded && !request->never_waits)) {
      ++i;
      continue;
    }
    if (!MakeRoomFor(*request, plan)) return;
    // Preempted requests may have come before it.
    const auto place = std::find(waiting_.begin(), waiting_.end(), request);
    i = static_cast<size_t>(place - waiting_.begin());
    waiting_.erase(place);
    Insert(running_, request);
    request->has_run = true;
    plan.admitted.push_back(request);
    std::erase(plan.preempted, request);
    if (IsFull(plan)) plan.rows.pop_back();
    const auto after = std::find_if(plan.rows.begin(), plan.rows.end(), [&](const auto& rows) {
      return Precedes(request, rows.request);
    });
    plan.rows.insert(after, {request});
  }
}

bool Scheduler::MakeRoomFor(ScheduledRequest& waiting, StepPlan& plan) {
  const bool is_any_unwilling = std::any_of(waiting_.begin(), waiting_.end(),
                                            [](const auto* other) { return other->never_waits; });
  TakeCached(waiting);
  while (!waiting.state->Reserve(waiting.length)) {
    // Age alone takes nothing from those that run: they would only come back and be computed twice.
    // Nor does one that has lost its state, else two might take it from each other for ever.
    ScheduledRequest* const last = running_.empty() ? nullptr : running_.back();
    const bool may_take_last = last != nullptr && !waiting.has_run &&
                               last->priority > waiting.priority && Precedes(&waiting, last);
    const bool takes_any =
        is_any_unwilling || plan.rows.empty() || (may_take_last && last->never_waits);
    if (PreemptIdle(takes_any, plan)) continue;
    if (!may_take_last) {
      waiting.state->Truncate(0);  // who waits holds nothing
      waiting.cached_count = 0;
      return false;
    }
    std::erase_if(plan.rows, [&](const auto& rows) { return rows.request == last; });
    Preempt(last, plan);
  }
  return true;
}

void Scheduler::TakeCached(ScheduledRequest& request) {
  if (request.token_at == nullptr || request.logit_length > 0) return;
  const int32_t before = request.state->length();
  request.state->TakeCached(request.token_at, request.length - 1);
  request.cached_count += request.state->length() - before;
}

void Scheduler::DistributeRows(StepPlan& plan) const {
  const auto count = static_cast<int32_t>(plan.rows.size());
  int32_t spare = options_.max_batch_tokens - count;
  int32_t spare_logit_rows = std::max(options_.max_logit_rows, options_.max_batch_size) - count;
  const auto lacking = [](const StepPlan::Rows& rows) {
    return rows.request->length - rows.request->state->length() - rows.row_count;
  };
  const auto give = [&](StepPlan::Rows& rows, int32_t limit) {
    int32_t given = std::min({lacking(rows), spare, limit});
    if (rows.request->state->length() < rows.request->logit_length) {
      given = std::min(given, spare_logit_rows);
      spare_logit_rows -= given;
    }
    rows.row_count += given;
    spare -= given;
  };
  std::vector<StepPlan::Rows*> prompts;  // in order
  for (StepPlan::Rows& rows : plan.rows) {
    rows.row_count = 1;
    SELFSAME_CHECK(lacking(rows) >= 0);
    if (lacking(rows) > 0) prompts.push_back(&rows);
  }
  if (!prompts.empty()) {
    std::vector<StepPlan::Rows*> shortest_first = prompts;
    std::stable_sort(shortest_first.begin() + 1, shortest_first.end(),
                     [&](const auto* a, const auto* b) { return lacking(*a) < lacking(*b); });
    for (StepPlan::Rows* rows : shortest_first) give(*rows, options_.prefill_chunk - 1);
    for (StepPlan::Rows* rows : prompts) give(*rows, spare);
  }
  for (StepPlan::Rows& rows : plan.rows) rows.is_sampled = lacking(rows) == 0;
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
  request->cached_count = 0;
  std::erase(running_, request);
  Insert(waiting_, request);
  plan.preempted.push_back(request);
}

}  // namespace selfsame::decoder
