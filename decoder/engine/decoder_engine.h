#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/kv/kv_cache.h"
#include "common/model/model.h"
#include "common/mutex.h"
#include "common/tokenizer/tokenizer.h"
#include "decoder/engine/drain_rate.h"
#include "decoder/engine/engine.h"
#include "decoder/engine/engine_core.h"
#include "decoder/engine/types.h"
#include "decoder/engine/window_policy.h"

namespace selfsame::decoder {

struct DecoderEngineOptions {
  CoreOptions core;
  int32_t kv_block_count = 0;
  int32_t max_waiting_requests = 0;
};

// The decoder's engine: one thread that owns the model, its KV cache and all requests, and a
// bounded inbox that callers and verifiers put events in. The thread takes the inbox between two
// steps and sleeps when nothing is to be done; no step waits for a verifier.
class DecoderEngine final : public Engine, public VerifierEvents {
 public:
  // INVALID_ARGUMENT when the options do not fit together or the model (its pass limits must cover
  // the scheduler's, the KV cache one request of full length); RESOURCE_EXHAUSTED when the KV cache
  // does not fit in memory. `tokenizer` and `clock` must outlive the engine.
  static absl::StatusOr<std::unique_ptr<DecoderEngine>> Create(const DecoderEngineOptions& options,
                                                               std::unique_ptr<Model> model,
                                                               const Tokenizer& tokenizer,
                                                               std::unique_ptr<WindowPolicy> policy,
                                                               const Clock& clock);
  // Stops.
  ~DecoderEngine() override;

  // Starts the thread. `links` are the ways to the verifiers, by index; they must outlive the
  // thread (Stop ends it). `on_device_lost` is called on it, at most once, after every request has
  // ended with UNAVAILABLE because a pass failed; the thread ends then, and whatever is submitted
  // is refused with the same status. Once only.
  void Start(const std::vector<VerifierLink*>& links,
             std::function<void(const absl::Status&)> on_device_lost);
  // Refuses new requests and waits until all others have ended, or `deadline`. May block.
  void Drain(SteadyTime deadline);
  // Ends the thread; requests that are left get OnError(UNAVAILABLE). Idempotent. May block for a
  // step.
  void Stop();

  using Engine::Submit;
  absl::StatusOr<std::vector<uint64_t>> Submit(std::vector<Submission> submissions) override;
  void Cancel(uint64_t id) override;
  EngineStats stats() const override;

  void OnVerifierUp(int verifier, VerifierInfo info) override;
  void OnVerifierDown(int verifier, absl::Status status) override;
  void OnVerdict(int verifier, Verdict verdict) override;
  void OnSessionError(int verifier, uint64_t session_id, absl::Status status) override;

 private:
  struct SubmitEvent {
    uint64_t id;
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
  };
  struct CancelEvent {
    uint64_t id;
  };
  struct UpEvent {
    int verifier;
    VerifierInfo info;
  };
  struct DownEvent {
    int verifier;
    absl::Status status;
  };
  struct FloodEvent {
    int verifier;
  };
  struct VerdictEvent {
    int verifier;
    Verdict verdict;
  };
  struct SessionErrorEvent {
    int verifier;
    uint64_t session_id;
    absl::Status status;
  };
  using Event = std::variant<SubmitEvent, CancelEvent, UpEvent, DownEvent, FloodEvent, VerdictEvent,
                             SessionErrorEvent>;

  DecoderEngine(const DecoderEngineOptions& options, std::unique_ptr<Model> model,
                std::unique_ptr<KvCache> kv, const Tokenizer& tokenizer,
                std::unique_ptr<WindowPolicy> policy, const Clock& clock);

  absl::StatusOr<std::vector<uint64_t>> Enqueue(std::vector<Submission> submissions);
  // When the queue is likely to have room for many of those that it refuses.
  int64_t QueueRetryMs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Push(Event event);
  // A verdict or session error; when too many wait, the verifier counts as broken.
  void PushFromVerifier(int verifier, Event event, int32_t places);

  // The engine thread.
  void Run();
  // Waits for events when idle, and moves them to `events`. False: stop.
  bool TakeEvents(bool is_idle, std::vector<Event>& events);
  void Handle(Event event);
  void Lose(const absl::Status& status);
  void Report();

  const DecoderEngineOptions options_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> kv_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<WindowPolicy> policy_;
  const Clock& clock_;
  std::unique_ptr<EngineCore> core_;  // of the engine thread, once it runs
  std::function<void(const absl::Status&)> on_device_lost_;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar wake_;     // the engine thread waits for events
  CondVar drained_;  // Drain waits for the last request
  std::vector<Event> inbox_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int32_t> verifier_event_counts_ ABSL_GUARDED_BY(mutex_);  // places in the inbox
  int32_t verifier_count_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool is_started_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  DrainRate drain_rate_ ABSL_GUARDED_BY(mutex_);  // of the queue
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);     // waiting requests include those in the inbox
  absl::Status device_status_ ABSL_GUARDED_BY(mutex_);  // not OK: lost
};

}  // namespace selfsame::decoder
