#include "decoder/engine/engine_core.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace selfsame::decoder {
namespace {

void Earliest(std::optional<SteadyTime>& wake, std::optional<SteadyTime> other) {
  if (other && (!wake || *other < *wake)) wake = other;
}

// Ageing as a rank that never changes: of two requests the one with the lower priority value comes
// first, unless it arrived later by more than that many kPriorityStep.
int64_t RankOf(const Request& request) {
  using std::chrono::microseconds;
  const auto arrived_at =
      request.arrived_at.time_since_epoch() + int64_t{request.params.priority} * kPriorityStep;
  return std::chrono::duration_cast<microseconds>(arrived_at).count();
}

SchedulerOptions WithLogitRows(SchedulerOptions options, int32_t max_logit_rows) {
  options.max_logit_rows = max_logit_rows;
  return options;
}

}  // namespace

EngineCore::EngineCore(const CoreOptions& options, ForwardModel& model, KvCache& kv,
                       const Tokenizer& tokenizer, WindowPolicy& policy, const Clock& clock,
                       const std::vector<VerifierLink*>& links,
                       std::unique_ptr<Scheduler> scheduler)
    : options_(options),
      model_(model),
      tokenizer_(tokenizer),
      clock_(clock),
      observer_(options.observer == nullptr ? no_observer_ : *options.observer),
      blocks_(kv.block_count(), options.enable_prefix_caching),
      runner_(model, kv, options.authority ? options.authority->rungs : std::vector<int32_t>()),
      sessions_(options.sessions, links, policy, observer_),
      scheduler_(scheduler ? std::move(scheduler)
                           : std::make_unique<Scheduler>(WithLogitRows(
                                 options.scheduler, model.limits().max_logit_rows))) {}

EngineCore::~EngineCore() { FailAll(UnavailableError("the engine has stopped")); }

void EngineCore::Submit(uint64_t id, GenerationRequest params,
                        std::shared_ptr<GenerationSink> sink) {
  auto output = OutputStream::Create(tokenizer_, params.stop_strings, params.stop_token_ids,
                                     params.max_tokens, params.logit_rules.min_tokens);
  const SteadyTime arrived_at = params.arrived_at.value_or(clock_.Now());
  const absl::Status status =
      output.ok() ? output->Resume(params.resume_token_ids) : output.status();
  if (!status.ok()) {
    observer_.OnRefused(params.is_deterministic, status.code());
    sink->OnError(status);
    return;
  }
  auto owned =
      std::make_unique<Request>(id, std::move(params), std::move(sink), *std::move(output));
  Request& request = *owned;
  request.arrived_at = arrived_at;
  if (request.params.is_deterministic && !options_.authority) {
    request.verification.emplace(
        SpeculationParams{.prompt_length = request.prompt_length(),
                          .max_tokens = request.params.max_tokens,
                          .stop_token_ids = request.params.stop_token_ids,
                          .vocab_size = model_.vocab_size(),
                          .max_inflight_windows = options_.max_inflight_windows,
                          .resumed_tokens = request.params.resume_token_ids,
                          .top_logprobs = request.params.top_logprobs,
                          .prompt_logprobs = request.params.prompt_logprobs});
    if (!request.params.stop_strings.empty() || request.params.stream_candidates) {
      request.verification->lookahead = request.output;
    }
    // The lead of the best logit is known to be that of the choice where there is no noise.
    request.verification->wants_margins =
        options_.doubt_margin > 0.0f && request.params.temperature <= 0.0f;
  } else {
    request.ordinary_output = request.params.resume_token_ids;
  }
  request.schedule.id = id;
  request.schedule.length = request.length();
  request.schedule.priority = request.params.priority;
  request.schedule.rank = RankOf(request);
  request.schedule.never_waits = !request.verification;
  request.schedule.token_at = [&request](int32_t position) { return request.TokenAt(position); };
  request.schedule.state = std::make_unique<PagedSequenceState>(blocks_);
  requests_[id] = std::move(owned);
  scheduler_->Add(&request.schedule);
}

void EngineCore::Cancel(uint64_t id) {
  const auto it = requests_.find(id);
  if (it != requests_.end()) Fail(*it->second, CancelledError("the client cancelled the request"));
}

void EngineCore::OnVerifierUp(int verifier, VerifierInfo info) {
  sessions_.OnUp(verifier, std::move(info), clock_.Now());
}

void EngineCore::OnVerifierDown(int verifier, const absl::Status& status) {
  sessions_.OnDown(verifier, status, clock_.Now());
}

void EngineCore::OnVerifierFlood(int verifier) {
  sessions_.Break(verifier, ResourceExhaustedError("too many verdicts in the queue", 0),
                  clock_.Now());
}

void EngineCore::OnVerdict(int verifier, const Verdict& verdict) {
  auto applied = sessions_.OnVerdict(verifier, verdict, clock_.Now());
  if (!applied) return;
  Request& request = *applied->request;
  const SpeculationEffect& effect = applied->effect;
  if (effect.truncate_to) {
    request.schedule.state->Truncate(*effect.truncate_to);
    if (request.editor) request.editor->Truncate(*effect.truncate_to - request.prompt_length());
  }
  Publish(request);
  if (effect.first_dropped && request.params.stream_candidates) {
    request.sink->OnRetract({.length = *effect.first_dropped});
  }
  if (!effect.prompt_logprobs.empty()) {
    DeliverPromptLogprobs(request, std::move(applied->effect.prompt_logprobs));
  }
  if (!effect.tokens.empty()) {
    Stand(request, effect.first_position, effect.tokens, effect.logprobs, effect.top_logprobs);
  }
}

void EngineCore::OnSessionError(int verifier, uint64_t session_id, const absl::Status& status) {
  Request* failed = sessions_.OnSessionError(verifier, session_id, status, clock_.Now());
  if (failed != nullptr) Fail(*failed, status);
}

void EngineCore::FailAll(const absl::Status& status) {
  while (!requests_.empty()) Fail(*requests_.begin()->second, status);
}

absl::StatusOr<bool> EngineCore::Step() {
  ExpireDeadlines();
  sessions_.ExpireVerdicts(clock_.Now());
  PrepareRequests();
  ASSIGN_OR_RETURN(const bool has_run, RunPass());
  ReportWaits();
  sessions_.CutWindows(clock_.Now());
  return has_run;
}

void EngineCore::ExpireDeadlines() {
  const SteadyTime now = clock_.Now();
  for (auto it = requests_.begin(); it != requests_.end();) {
    Request& request = *(it++)->second;
    if (request.params.deadline && now >= *request.params.deadline) {
      Fail(request, DeadlineExceededError("the request's deadline passed"));
    }
  }
}

// Finds out which requests may have rows in this step. Those that have begun and lost their session
// get a new one at once, so that their candidates can be verified even while they have no rows.
void EngineCore::PrepareRequests() {
  const SteadyTime now = clock_.Now();
  for (auto it = requests_.begin(); it != requests_.end();) {
    Request& request = *(it++)->second;
    ScheduledRequest& schedule = request.schedule;
    schedule.length = request.length();
    schedule.logit_length = request.needs_all_prompt_rows() ? request.prompt_length() - 1 : 0;
    if (!request.verification) continue;
    const bool is_running = schedule.state->block_count() > 0;
    bool can_have_session = true;
    if (!request.verification->has_session()) {
      auto found = sessions_.Seek(request, now);
      if (!found.ok()) {
        Fail(request, found.status());
        continue;
      }
      can_have_session = *found;
      // One that found no room on a verifier may have decoded all it may before it was preempted.
      const bool has_begun = request.has_started || is_running ||
                             request.verification->speculation.candidate_count() > 0;
      if (can_have_session && has_begun) OpenSession(request);
    }
    schedule.is_ready =
        (can_have_session || is_running) && sessions_.WantsCandidate(*request.verification);
    schedule.is_stalled = !can_have_session;
  }
}

absl::StatusOr<bool> EngineCore::RunPass() {
  const StepPlan plan = scheduler_->Plan();
  preemptions_ += static_cast<int64_t>(plan.preempted.size());
  for (ScheduledRequest* scheduled : plan.admitted) Admit(*requests_.at(scheduled->id));
  ++step_number_;
  int32_t row_count = 0;
  step_rows_.clear();
  for (const StepPlan::Rows& rows : plan.rows) {
    Request* request = requests_.at(rows.request->id).get();
    request->last_step = step_number_;
    CountCached(*request);
    row_count += rows.row_count;
    step_rows_.push_back(
        {.request = request, .row_count = rows.row_count, .is_sampled = rows.is_sampled});
  }
  if (step_rows_.empty()) return false;
  const SteadyTime begin = clock_.Now();
  if (absl::Status status = runner_.Run(step_rows_); !status.ok()) {
    const absl::Status lost =
        UnavailableError(absl::StrCat("the decoder's device is lost: ", status.message()));
    FailAll(lost);
    return lost;
  }
  observer_.OnStep({.row_count = row_count,
                    .request_count = static_cast<int32_t>(step_rows_.size()),
                    .duration = clock_.Now() - begin});
  for (const RequestRows& rows : step_rows_) Publish(*rows.request);
  std::span<const SampledToken> sampled = runner_.sampled();
  for (const RequestRows& rows : step_rows_) {
    const auto given = static_cast<size_t>(rows.prompt_logprob_count);
    if (given > 0) TakePromptLogprobs(*rows.request, sampled.first(given));
    sampled = sampled.subspan(given);
    if (!rows.is_sampled) continue;
    TakeToken(*rows.request, sampled.front());
    sampled = sampled.subspan(1);
  }
  return true;
}

// Judged by what is there after the step, not by what the scheduler meant. A batch that is not full
// has room for every ordinary request that holds KV; one without KV lacks memory, and waits for a
// verdict if requests that wait for theirs hold some.
void EngineCore::ReportWaits() {
  if (static_cast<int32_t>(step_rows_.size()) == options_.scheduler.max_batch_size) return;
  const auto holds_kv = [](const Request& request) {
    return request.schedule.state->block_count() > 0;
  };
  const bool is_kv_idle = std::any_of(requests_.begin(), requests_.end(), [&](const auto& entry) {
    const Request& request = *entry.second;
    return request.verification && !request.schedule.is_ready && holds_kv(request);
  });
  int32_t count = 0;
  for (const auto& [id, request] : requests_) {
    if (request->verification || request->last_step == step_number_) continue;
    if (is_kv_idle || holds_kv(*request)) ++count;
  }
  if (count > 0) observer_.OnOrdinaryWait(count);
}

void EngineCore::Admit(Request& request) {
  ++request.admission_count;
  if (blocks_.caches_prefixes()) prefix_queries_ += request.length();
  if (request.has_started) return;  // preempted before
  if (!request.verification) {
    Start(request, OwnFingerprint(request));
    return;
  }
  // Several may be admitted in one step, and only the first of them find room on the verifiers. The
  // others get their session in a later step.
  auto found = sessions_.Seek(request, clock_.Now());
  if (found.ok() && *found) OpenSession(request);
}

std::string EngineCore::OwnFingerprint(const Request& request) const {
  const bool is_decided_here = request.params.is_deterministic && options_.authority.has_value();
  return is_decided_here ? options_.authority->fingerprint : std::string();
}

void EngineCore::CountCached(Request& request) {
  const int32_t count = std::exchange(request.schedule.cached_count, 0);
  prefix_hits_ += count;
  if (request.admission_count > 1) return;
  request.cached_prompt_tokens =
      std::min(request.cached_prompt_tokens + count, request.prompt_length());
}

void EngineCore::Publish(Request& request) {
  request.schedule.state->Publish(request.schedule.token_at, request.settled_length());
}

void EngineCore::OpenSession(Request& request) {
  sessions_.Open(request, clock_.Now());
  if (!request.has_started) Start(request, request.verification->fingerprint);
}

void EngineCore::Release(Request& request) {
  if (!request.has_started) ++dequeued_;
  sessions_.Close(request);
  scheduler_->Remove(&request.schedule);
  requests_.erase(request.id);
}

std::optional<SteadyTime> EngineCore::NextWake() const {
  const SteadyTime now = clock_.Now();
  std::optional<SteadyTime> wake;
  for (const auto& [id, request] : requests_) {
    Earliest(wake, request->params.deadline);
    if (request->verification) Earliest(wake, sessions_.NextWake(*request, now));
  }
  return wake;
}

EngineStats EngineCore::stats() const {
  EngineStats stats;
  stats.running_requests = scheduler_->running_count();
  stats.waiting_requests = scheduler_->waiting_count();
  stats.sessions = sessions_.session_count();
  stats.verifiers_up = sessions_.verifiers_up();
  stats.kv_usage = 1.0 - static_cast<double>(blocks_.free_count()) / blocks_.block_count();
  stats.free_kv_blocks = blocks_.free_count();
  stats.cached_kv_blocks = blocks_.cached_count();
  stats.dequeued = dequeued_;
  stats.preemptions = preemptions_;
  stats.prefix_queries = prefix_queries_;
  stats.prefix_hits = prefix_hits_;
  return stats;
}

}  // namespace selfsame::decoder
