#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/canonical/authority.h"
#include "common/clock.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_cache.h"
#include "common/model/forward_model.h"
#include "common/tokenizer/tokenizer.h"
#include "decoder/engine/engine.h"
#include "decoder/engine/engine_observer.h"
#include "decoder/engine/request.h"
#include "decoder/engine/scheduler.h"
#include "decoder/engine/sessions.h"
#include "decoder/engine/step_runner.h"
#include "decoder/engine/types.h"
#include "decoder/engine/window_policy.h"

namespace selfsame::decoder {

// What waiting for a step of priority is worth; GenerateRequest.priority says so to clients.
inline constexpr std::chrono::milliseconds kPriorityStep{1000};

struct CoreOptions {
  SchedulerOptions scheduler;
  SessionOptions sessions;
  int32_t max_inflight_windows = 4;  // of one request
  // A candidate chosen greedily is in doubt when its logit leads the next by less; 0: none is.
  float doubt_margin = 0.0f;
  bool enable_prefix_caching = true;
  EngineObserver* observer = nullptr;  // null: none; must outlive the core
  // Set when the model runs under the canonical schedule and has proved itself: its own tokens are
  // the answer then, and deterministic requests open no sessions. Passes run at its rungs, of which
  // the last is the scheduler's max_batch_tokens.
  std::optional<Authority> authority = std::nullopt;
};

// The engine without its thread: everything that happens to requests between Submit and their last
// event. Events come in by calls, Step does one pass of the model, and nothing ever blocks, so that
// a test may drive it under a clock of its own. One thread.
//
// The life of a request, top down:
//   Submit           queued in the scheduler
//   PrepareRequests  a deterministic one waits in the queue until a verifier can take it
//   RunPass          admitted (OnStarted; the session is opened and both sides prefill at the same
//                    time), then prefilled in chunks and decoded beside the others
//   Publish          KV of tokens that stand serves later requests with the same prefix
//   TakeToken        an ordinary token stands at once; a deterministic one is a candidate
//   CutWindows       candidates go to the verifier while decoding goes on
//   OnVerdict        what is committed stands; a rollback truncates the state
//   Stand            tokens that stand become text and one OnChunk, and may be the end
//   Finish, Fail     OnComplete or OnError; state and session are freed
class EngineCore {
 public:
  // All references and links must outlive the core. `kv` is the cache the model runs over.
  // `scheduler`: null for the core's own.
  EngineCore(const CoreOptions& options, ForwardModel& model, KvCache& kv,
             const Tokenizer& tokenizer, WindowPolicy& policy, const Clock& clock,
             const std::vector<VerifierLink*>& links,
             std::unique_ptr<Scheduler> scheduler = nullptr);
  ~EngineCore();

  // Events. Ids of requests are never reused; what is unknown or late is ignored.
  void Submit(uint64_t id, GenerationRequest params, std::shared_ptr<GenerationSink> sink);
  void Cancel(uint64_t id);
  void OnVerifierUp(int verifier, VerifierInfo info);
  void OnVerifierDown(int verifier, const absl::Status& status);
  void OnVerifierFlood(int verifier);
  void OnVerdict(int verifier, const Verdict& verdict);
  void OnSessionError(int verifier, uint64_t session_id, const absl::Status& status);
  // Ends every request with `status`.
  void FailAll(const absl::Status& status);

  // One step. False when there was nothing to run: then nothing will change before the next event,
  // or NextWake(). An error means the device is lost; every request has failed with it then.
  absl::StatusOr<bool> Step();
  std::optional<SteadyTime> NextWake() const;

  EngineStats stats() const;

 private:
  // The phases of a step.
  void ExpireDeadlines();
  void PrepareRequests();
  absl::StatusOr<bool> RunPass();

  // Tells the observer of ordinary requests that the step left out for want of a verdict.
  void ReportWaits();
  void Admit(Request& request);
  void CountCached(Request& request);
  static void Publish(Request& request);
  void OpenSession(Request& request);
  // Under which the model itself decides this request's answer; empty when it does not.
  std::string OwnFingerprint(const Request& request) const;
  void TakeToken(Request& request, const SampledToken& token);
  void TakePromptLogprobs(Request& request, std::span<const SampledToken> given);
  void DeliverPromptLogprobs(Request& request, std::vector<PromptLogprob> entries);
  void ProposeToken(Request& request, const SampledToken& token);
  bool IsInDoubt(const Verification& verification, const SampledToken& token) const;
  // Delivers tokens that stand, and finishes the request if they hold its end. The request may be
  // gone afterwards.
  void Stand(Request& request, int32_t first_position, std::span<const int32_t> token_ids,
             std::span<const float> logprobs, std::span<const TopLogprobs> top_logprobs);
  void Start(Request& request, std::string fingerprint);
  // Shows what was decoded before the request started.
  void ShowCandidates(Request& request);
  void ShowCandidate(Request& request, int32_t position, int32_t token_id, std::string text);
  void Finish(Request& request);
  void Fail(Request& request, const absl::Status& status);
  // Frees both sides and forgets the request.
  void Release(Request& request);

  CoreOptions options_;
  ForwardModel& model_;
  const Tokenizer& tokenizer_;
  const Clock& clock_;
  EngineObserver no_observer_;
  EngineObserver& observer_;
  BlockPool blocks_;
  StepRunner runner_;
  Sessions sessions_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<uint64_t, std::unique_ptr<Request>> requests_;
  std::vector<RequestRows> step_rows_;
  uint64_t step_number_ = 0;
  int64_t dequeued_ = 0;
  int64_t preemptions_ = 0;
  int64_t prefix_queries_ = 0;
  int64_t prefix_hits_ = 0;
};

}  // namespace selfsame::decoder
