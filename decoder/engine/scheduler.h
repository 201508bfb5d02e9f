#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/kv/sequence_state.h"

namespace selfsame::decoder {

struct SchedulerOptions {
  int32_t max_batch_tokens = 0;  // rows of a step
  int32_t max_batch_size = 0;    // requests with rows in a step, at most max_batch_tokens
};

// What the scheduler knows of one request. The owner keeps `length`, `is_ready` and `is_stalled`
// true between steps.
struct ScheduledRequest {
  uint64_t id = 0;
  // Tokens known: prompt and output. Rows are needed for positions from state->length() to here;
  // the last of them gives the next token.
  int32_t length = 0;
  // A next token is wanted. A request that waits for verdicts is not ready; it keeps its state and
  // takes no rows.
  bool is_ready = true;
  // Not ready, and nobody knows for how long (no verifier to be had): others may take its state.
  bool is_stalled = false;
  // The request must not wait until others become ready: it takes their state instead.
  bool never_waits = false;
  // The token at a position below `length`, by which the prefix cache is searched on admission;
  // null: it is not.
  std::function<int32_t(int32_t position)> token_at;
  std::unique_ptr<SequenceState> state;
};

struct StepPlan {
  struct Rows {
    ScheduledRequest* request = nullptr;
    int32_t row_count = 0;    // positions [state->length(), state->length() + row_count)
    bool is_sampled = false;  // the last row is that of the last known token
  };
  std::vector<Rows> rows;                    // room for them is reserved
  std::vector<ScheduledRequest*> admitted;   // for the first time or again
  std::vector<ScheduledRequest*> preempted;  // their state is freed
};

// Continuous batching: decides anew at every step which requests get how many rows. Requests join
// and leave at any step; prompts are prefilled in chunks beside the others' decoding. No I/O, no
// clock, one thread. Does not own the requests, which must stay until removed.
//
// Order is first come, first served. Admission needs room for every token known, of which the
// prefix cache may have a part computed already, though never the last one; when room runs short
// later, the request admitted last loses its state and waits at the head of the queue, and is
// recomputed. The oldest always has room, if memory holds one request of full length, so that all
// finish. A request that never waits loses its state only after all those that are not ready.
//
// Virtual so that a test can put a worse one in its place.
class Scheduler {
 public:
  // REQUIRES: 0 < max_batch_size <= max_batch_tokens.
  explicit Scheduler(const SchedulerOptions& options);
  virtual ~Scheduler() = default;

  virtual void Add(ScheduledRequest* request);
  // Frees the request's state. REQUIRES: added, not removed.
  void Remove(ScheduledRequest* request);

  // Chooses the next step. Empty when no request is ready, or none of the ready has room.
  virtual StepPlan Plan();

  int32_t waiting_count() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t running_count() const { return static_cast<int32_t>(running_.size()); }

 private:
  // Each of the running that is ready takes part, oldest first, as far as the batch goes.
  void ChooseRunning(StepPlan& plan);
  // Takes from others what a running request lacks. False when it has lost its own state instead.
  bool MakeRoom(ScheduledRequest& request, StepPlan& plan);
  void Admit(StepPlan& plan);
  // One row for each, and what is left of the budget to those that prefill.
  void DistributeRows(StepPlan& plan) const;
  // Frees the state of a request that is not ready: a stalled one, or any if `takes_any`. False
  // when there is none.
  bool PreemptIdle(bool takes_any, StepPlan& plan);
  void Preempt(ScheduledRequest* request, StepPlan& plan);
  bool IsFull(const StepPlan& plan) const;

  SchedulerOptions options_;
  std::deque<ScheduledRequest*> waiting_;   // head first
  std::vector<ScheduledRequest*> running_;  // in order of admission
};

}  // namespace selfsame::decoder
