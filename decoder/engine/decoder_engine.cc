#include "decoder/engine/decoder_engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/model/warm_up.h"

namespace selfsame::decoder {
namespace {

// Bounds of the retry hint of a full queue, and what it is while nothing has left the queue.
constexpr int64_t kMinQueueRetryMs = 50;
constexpr int64_t kMaxQueueRetryMs = 60000;
constexpr int64_t kQueueRetryMs = 1000;

absl::Status CheckOptions(const DecoderEngineOptions& options, const PassLimits& limits) {
  const SchedulerOptions& scheduler = options.core.scheduler;
  if (scheduler.max_batch_size < 1 || scheduler.max_batch_size > limits.max_logit_rows) {
    return InvalidArgumentError("max_batch_size",
                                absl::StrCat("must be from 1 to ", limits.max_logit_rows));
  }
  if (scheduler.max_batch_tokens < scheduler.max_batch_size ||
      scheduler.max_batch_tokens > limits.max_rows) {
    return InvalidArgumentError(
        "max_batch_tokens", absl::StrCat("must be from max_batch_size, ", scheduler.max_batch_size,
                                         ", to ", limits.max_rows));
  }
  if (options.kv_block_count < BlocksFor(limits.context_limit)) {
    return InvalidArgumentError("kv_block_count",
                                absl::StrCat("must be at least ", BlocksFor(limits.context_limit),
                                             ", one request of ", limits.context_limit, " tokens"));
  }
  const int32_t window_size = options.core.sessions.window_size;
  if (window_size < 1 || window_size > kMaxWindowSize) {
    return InvalidArgumentError("window_size", absl::StrCat("must be from 1 to ", kMaxWindowSize));
  }
  if (options.core.max_inflight_windows < 1) {
    return InvalidArgumentError("max_inflight_windows", "must be at least 1");
  }
  if (options.max_waiting_requests < 1) {
    return InvalidArgumentError("max_waiting_requests", "must be at least 1");
  }
  return absl::OkStatus();
}

absl::Status CheckCanDecide(const GenerationRequest& request,
                            const std::optional<Authority>& authority, int32_t verifier_count) {
  if (!request.is_deterministic) return absl::OkStatus();
  if (!authority && verifier_count == 0) {
    return FailedPreconditionError(
        "deterministic requests need a verifier, and this decoder has none configured");
  }
  if (authority && request.expected_fingerprint &&
      *request.expected_fingerprint != authority->fingerprint) {
    return FailedPreconditionError(absl::StrCat("expected_fingerprint is ",
                                                *request.expected_fingerprint, ", the decoder has ",
                                                authority->fingerprint));
  }
  return absl::OkStatus();
}

// How much of its share of the inbox a verdict takes: one place, and one for each 1024 logprobs.
int32_t PlacesOf(const Verdict& verdict) {
  size_t logprobs = verdict.logprobs.size() + verdict.prompt_logprobs.size();
  for (const TopLogprobs& top : verdict.top_logprobs) logprobs += top.size();
  for (const PromptLogprob& entry : verdict.prompt_logprobs) logprobs += entry.top.size();
  return 1 + static_cast<int32_t>(logprobs / 1024);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderEngine>> DecoderEngine::Create(
    const DecoderEngineOptions& options, std::unique_ptr<Model> model, const Tokenizer& tokenizer,
    std::unique_ptr<WindowPolicy> policy, const Clock& clock) {
  RETURN_IF_ERROR(CheckOptions(options, model->limits()));
  ASSIGN_OR_RETURN(auto kv, model->CreateKvCache(options.kv_block_count));
  WarmUpOptions warm_up{.max_sequences = options.core.scheduler.max_batch_size};
  if (options.core.authority) warm_up.rungs = options.core.authority->rungs;
  RETURN_IF_ERROR(WarmUp(*model, *kv, warm_up));
  return std::unique_ptr<DecoderEngine>(new DecoderEngine(options, std::move(model), std::move(kv),
                                                          tokenizer, std::move(policy), clock));
}

DecoderEngine::DecoderEngine(const DecoderEngineOptions& options, std::unique_ptr<Model> model,
                             std::unique_ptr<KvCache> kv, const Tokenizer& tokenizer,
                             std::unique_ptr<WindowPolicy> policy, const Clock& clock)
    : options_(options),
      model_(std::move(model)),
      kv_(std::move(kv)),
      tokenizer_(tokenizer),
      policy_(std::move(policy)),
      clock_(clock) {}

DecoderEngine::~DecoderEngine() { Stop(); }

void DecoderEngine::Start(const std::vector<VerifierLink*>& links,
                          std::function<void(const absl::Status&)> on_device_lost) {
  {
    MutexLock lock(mutex_);
    SELFSAME_CHECK(!is_started_);
    is_started_ = true;
    verifier_count_ = static_cast<int32_t>(links.size());
  }
  core_ = std::make_unique<EngineCore>(options_.core, *model_, *kv_, tokenizer_, *policy_, clock_,
                                       links);
  on_device_lost_ = std::move(on_device_lost);
  thread_ = std::thread([this] { Run(); });
}

void DecoderEngine::Drain(SteadyTime deadline) {
  MutexLock lock(mutex_);
  is_draining_ = true;
  while (stats_.running_requests + stats_.waiting_requests > 0 && clock_.Now() < deadline) {
    drained_.WaitUntil(mutex_, deadline);
  }
}

void DecoderEngine::Stop() {
  {
    MutexLock lock(mutex_);
    is_draining_ = true;
    is_stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::vector<uint64_t>> DecoderEngine::Submit(std::vector<Submission> submissions) {
  const bool is_deterministic = submissions.front().request.is_deterministic;
  const size_t count = submissions.size();
  for (Submission& submission : submissions) {
    if (!submission.request.arrived_at) submission.request.arrived_at = clock_.Now();
  }
  auto ids = Enqueue(std::move(submissions));
  if (!ids.ok() && options_.core.observer != nullptr) {
    for (size_t i = 0; i < count; ++i) {
      options_.core.observer->OnRefused(is_deterministic, ids.status().code());
    }
  }
  return ids;
}

absl::StatusOr<std::vector<uint64_t>> DecoderEngine::Enqueue(std::vector<Submission> submissions) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(device_status_);
  if (!is_started_ || is_draining_) return UnavailableError("the decoder is shutting down");
  RETURN_IF_ERROR(
      CheckCanDecide(submissions.front().request, options_.core.authority, verifier_count_));
  const auto count = static_cast<int32_t>(submissions.size());
  if (stats_.waiting_requests + count > options_.max_waiting_requests) {
    return ResourceExhaustedError(
        absl::StrCat("the queue of ", options_.max_waiting_requests, " requests ",
                     count == 1 ? "is full" : absl::StrCat("has no room for ", count).c_str()),
        QueueRetryMs());
  }
  std::vector<uint64_t> ids;
  for (Submission& submission : submissions) {
    ids.push_back(next_id_++);
    inbox_.push_back(
        SubmitEvent{ids.back(), std::move(submission.request), std::move(submission.sink)});
  }
  stats_.waiting_requests += count;
  wake_.NotifyAll();
  return ids;
}

// Until half of the queue has left: room for one comes sooner, but not for all that wait for it.
int64_t DecoderEngine::QueueRetryMs() const {
  const auto time = drain_rate_.TimeFor(stats_.waiting_requests / 2 + 1, clock_.Now());
  if (!time) return kQueueRetryMs;
  return std::clamp<int64_t>(time->count(), kMinQueueRetryMs, kMaxQueueRetryMs);
}

void DecoderEngine::Cancel(uint64_t id) { Push(CancelEvent{id}); }

EngineStats DecoderEngine::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

void DecoderEngine::OnVerifierUp(int verifier, VerifierInfo info) {
  Push(UpEvent{verifier, std::move(info)});
}

void DecoderEngine::OnVerifierDown(int verifier, absl::Status status) {
  Push(DownEvent{verifier, std::move(status)});
}

void DecoderEngine::OnVerdict(int verifier, Verdict verdict) {
  const int32_t places = PlacesOf(verdict);
  PushFromVerifier(verifier, VerdictEvent{verifier, std::move(verdict)}, places);
}

void DecoderEngine::OnSessionError(int verifier, uint64_t session_id, absl::Status status) {
  PushFromVerifier(verifier, SessionErrorEvent{verifier, session_id, std::move(status)},
                   /*places=*/1);
}

void DecoderEngine::Push(Event event) {
  MutexLock lock(mutex_);
  inbox_.push_back(std::move(event));
  wake_.NotifyAll();
}

void DecoderEngine::PushFromVerifier(int verifier, Event event, int32_t places) {
  MutexLock lock(mutex_);
  int32_t& count = verifier_event_counts_[verifier];
  if (count > kMaxQueuedVerifierEvents) return;
  // Credit bounds the verdicts of a verifier that keeps to the protocol far below this.
  count += places;
  if (count > kMaxQueuedVerifierEvents) event = FloodEvent{verifier};
  inbox_.push_back(std::move(event));
  wake_.NotifyAll();
}

bool DecoderEngine::TakeEvents(bool is_idle, std::vector<Event>& events) {
  const std::optional<SteadyTime> until = is_idle ? core_->NextWake() : std::nullopt;
  MutexLock lock(mutex_);
  while (is_idle && inbox_.empty() && !is_stopping_) {
    if (!until) {
      wake_.Wait(mutex_);
    } else if (clock_.Now() < *until) {
      wake_.WaitUntil(mutex_, *until);
    } else {
      break;
    }
  }
  events.clear();
  events.swap(inbox_);
  verifier_event_counts_.clear();
  return !is_stopping_;
}

void DecoderEngine::Run() {
  std::vector<Event> events;
  bool is_idle = false;
  while (TakeEvents(is_idle, events)) {
    for (Event& event : events) Handle(std::move(event));
    auto has_run = core_->Step();
    if (!has_run.ok()) {
      Lose(has_run.status());
      return;
    }
    is_idle = !*has_run;
    Report();
  }
  for (Event& event : events) Handle(std::move(event));
  core_->FailAll(UnavailableError("the decoder is shutting down"));
  Report();
}

void DecoderEngine::Lose(const absl::Status& status) {
  LogError(status.message());
  std::vector<Event> events;
  {
    MutexLock lock(mutex_);
    device_status_ = status;
    events.swap(inbox_);
  }
  // Those that were submitted during the pass.
  for (Event& event : events) Handle(std::move(event));
  core_->FailAll(status);
  Report();
  on_device_lost_(status);
}

void DecoderEngine::Handle(Event event) {
  struct Handler {
    EngineCore& core;
    void operator()(SubmitEvent& e) { core.Submit(e.id, std::move(e.request), std::move(e.sink)); }
    void operator()(CancelEvent& e) { core.Cancel(e.id); }
    void operator()(UpEvent& e) { core.OnVerifierUp(e.verifier, std::move(e.info)); }
    void operator()(DownEvent& e) { core.OnVerifierDown(e.verifier, e.status); }
    void operator()(FloodEvent& e) { core.OnVerifierFlood(e.verifier); }
    void operator()(VerdictEvent& e) { core.OnVerdict(e.verifier, e.verdict); }
    void operator()(SessionErrorEvent& e) {
      core.OnSessionError(e.verifier, e.session_id, e.status);
    }
  };
  std::visit(Handler{*core_}, event);
}

void DecoderEngine::Report() {
  MutexLock lock(mutex_);
  stats_ = core_->stats();
  drain_rate_.Update(stats_.dequeued, clock_.Now());
  for (const Event& event : inbox_) {
    if (std::holds_alternative<SubmitEvent>(event)) ++stats_.waiting_requests;
  }
  if (stats_.running_requests + stats_.waiting_requests == 0) drained_.NotifyAll();
  if (options_.core.observer != nullptr) options_.core.observer->OnStats(stats_);
}

}  // namespace selfsame::decoder
