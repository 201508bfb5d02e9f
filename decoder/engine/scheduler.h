#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/kv/sequence_state.h"

namespace selfsame::decoder {

struct SchedulerOptions {
  int32_t max_batch_tokens = 0;  // rows of a step
  int32_t max_batch_size = 0;    // requests with rows in a step, at most max_batch_tokens
  // Rows that one prompt takes of a step before others that prefill have had theirs; 0: half of
  // max_batch_tokens.
  int32_t prefill_chunk = 0;
  // Rows with logits in a step, at least max_batch_size; 0: as many as that.
  int32_t max_logit_rows = 0;
};

// What the scheduler knows of one request. The owner keeps `length`, `logit_length`, `is_ready` and
// `is_stalled` true between steps.
struct ScheduledRequest {
  uint64_t id = 0;
  // Tokens known: prompt and output. Rows are needed for positions from state->length() to here;
  // the last of them gives the next token.
  int32_t length = 0;
  // Rows of positions below this take logits, as the last row does, and must run: the prefix cache
  // is not searched.
  int32_t logit_length = 0;
  // A next token is wanted. A request that waits for verdicts is not ready; it keeps its state and
  // takes no rows.
  bool is_ready = true;
  // Not ready, and nobody knows for how long (no verifier to be had): others may take its state.
  bool is_stalled = false;
  // The request must not wait until others become ready: it takes their state instead.
  bool never_waits = false;
  // The token at a position below `length`, by which the prefix cache is searched; null: it is not.
  std::function<int32_t(int32_t position)> token_at;
  // A request that has not run yet takes the room of those that do and have a greater priority.
  int32_t priority = 0;
  // The order among requests: lower first, and those added first among equals. Does not change.
  int64_t rank = 0;
  // Positions taken over from the prefix cache; the owner sets it to 0 when it has counted them.
  int32_t cached_count = 0;
  // The scheduler's own: number of addition, and whether it has ever been admitted.
  uint64_t number = 0;
  bool has_run = false;
  std::unique_ptr<SequenceState> state;
};

struct StepPlan {
  struct Rows {
    ScheduledRequest* request = nullptr;
    int32_t row_count = 0;    // positions [state->length(), state->length() + row_count)
    bool is_sampled = false;  // the last row is that of the last known token
  };
  std::vector<Rows> rows;                    // in order; room for them is reserved
  std::vector<ScheduledRequest*> admitted;   // for the first time or again
  std::vector<ScheduledRequest*> preempted;  // their state is freed
};

// Continuous batching: decides anew at every step which requests get how many rows. Requests join
// and leave at any step; prompts are prefilled in chunks beside the others' decoding. No I/O, no
// clock, one thread. Does not own the requests, which must stay until removed.
//
// Order is by rank, which never changes: where it is the time of arrival, first come, first served.
// Nobody overtakes the first that waits and is ready. Admission needs room for every token known.
// When room runs short, the last of those that run loses its state and waits again, and is
// recomputed. The first always has room, if memory holds one request of full length, so that all
// finish. A request that never waits loses its state only after all those that are not ready.
//
// Before its rows are planned a request takes over what the prefix cache has of it, though never
// the last token known. So of many requests of one prompt only the first that get rows compute it.
//
// Rows of a step: one for each request that takes part, so that no prompt holds up decoding; then
// up to a chunk for the first prompt, which so cannot starve; then up to a chunk for each other,
// those that lack least first, so that short prompts do not wait for long ones; then the rest.
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
  static bool Precedes(const ScheduledRequest* a, const ScheduledRequest* b);
  static void Insert(std::vector<ScheduledRequest*>& requests, ScheduledRequest* request);
  // Each of the running that is ready takes part, in order, as far as the batch goes.
  void ChooseRunning(StepPlan& plan);
  // Takes from others what a running request lacks. False when it has lost its own state instead.
  bool MakeRoom(ScheduledRequest& request, StepPlan& plan);
  void Admit(StepPlan& plan);
  // The same for a waiting one. False when it finds no room.
  bool MakeRoomFor(ScheduledRequest& waiting, StepPlan& plan);
  static void TakeCached(ScheduledRequest& request);
  void DistributeRows(StepPlan& plan) const;
  // Frees the state of a request that is not ready: a stalled one, or any if `takes_any`. False
  // when there is none.
  bool PreemptIdle(bool takes_any, StepPlan& plan);
  void Preempt(ScheduledRequest* request, StepPlan& plan);
  bool IsFull(const StepPlan& plan) const;

  SchedulerOptions options_;
  uint64_t next_number_ = 1;
  std::vector<ScheduledRequest*> waiting_;  // in order
  std::vector<ScheduledRequest*> running_;  // in order
};

}  // namespace selfsame::decoder
