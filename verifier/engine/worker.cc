#include "verifier/engine/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/canonical/pass_rows.h"
#include "common/check.h"
#include "common/errors.h"
#include "verifier/engine/validate.h"

namespace selfsame::verifier {
namespace {

// Positions that must be computed before a window can run: the settled ones, and, before the
// opening verdict, the one whose row gives it.
int32_t PrefillLength(const Session& session) {
  return session.committed_length() - (session.is_open() ? 1 : 0);
}

int32_t PrefillRows(const StoredSession& stored) {
  const Session& session = stored.session;
  return session.has_work() ? PrefillLength(session) - stored.state->length() : 0;
}

// Adds the rows; returns how many of them are logit rows.
size_t AddRows(StoredSession& stored, int32_t row_count, PassRows& rows) {
  Session& session = stored.session;
  const int32_t first = stored.state->length();
  rows.BeginSequence(first, stored.state->block_table());
  size_t logit_rows = 0;
  for (int32_t position = first; position < first + row_count; ++position) {
    const int32_t token_id = session.TokenAt(position);
    if (session.NeedsPromptLogprob(position)) {
      rows.AddLogitRow(token_id, session.PromptRow(position));
      ++logit_rows;
    } else if (position + 1 >= session.committed_length()) {
      rows.AddLogitRow(token_id, session.SamplingAfter(position));
      ++logit_rows;
    } else {
      rows.AddRow(token_id);
    }
  }
  return logit_rows;
}

}  // namespace

Worker::Worker(ForwardModel& model, std::unique_ptr<KvCache> kv, VerifierInfo info,
               std::chrono::nanoseconds max_wait, WindowPolicy policy, bool enable_prefix_caching)
    : model_(model),
      kv_(std::move(kv)),
      info_(std::move(info)),
      policy_(std::move(policy)),
      builder_(info_.rungs.back(), max_wait),
      store_(kv_->block_count(), info_.max_sessions, enable_prefix_caching) {
  SELFSAME_CHECK(info_.rungs.back() >= info_.max_window_size);
  // Every row of a pass may have logits, where windows and prompt logprobs are wanted.
  SELFSAME_CHECK(info_.rungs.back() <= model.limits().max_logit_rows);
  SELFSAME_CHECK(kv_->block_count() >= BlocksFor(info_.context_limit));
}

void Worker::SetObserver(EngineObserver& observer, const Clock& clock) {
  observer_ = &observer;
  clock_ = &clock;
}

void Worker::OpenStream(uint64_t stream_id, std::shared_ptr<StreamSink> sink) {
  const bool is_new = sinks_.emplace(stream_id, std::move(sink)).second;
  SELFSAME_CHECK(is_new);
}

void Worker::CloseStream(uint64_t stream_id) {
  for (const uint64_t session_id : store_.SessionsOf(stream_id)) {
    store_.Close({stream_id, session_id});
  }
  sinks_.erase(stream_id);
}

void Worker::OpenSession(uint64_t stream_id, SessionOpening opening, SteadyTime now) {
  const SessionKey key{stream_id, opening.session_id};
  const bool is_resumed = !opening.committed_token_ids.empty();
  absl::Status status = ValidateOpening(opening, info_);
  if (status.ok()) {
    status = store_.Open(key, Session(std::move(opening), info_.context_limit, now)).status();
  }
  // A second opening under an id in use ends the first session too: nobody could tell whose the
  // verdicts are.
  if (!status.ok()) {
    EndSession(key, status);
  } else if (observer_ != nullptr) {
    observer_->OnSessionOpened(is_resumed);
  }
}

void Worker::SubmitWindow(uint64_t stream_id, Window window, SteadyTime now) {
  const SessionKey key{stream_id, window.session_id};
  StoredSession* const stored = store_.Find(key);
  if (stored == nullptr) {
    EndSession(key, NotFoundError(absl::StrCat("session ", window.session_id)));
    return;
  }
  if (const absl::Status status = ValidateWindow(window, info_); !status.ok()) {
    EndSession(key, status);
    return;
  }
  auto verdict = stored->session.AddWindow(std::move(window), now);
  if (!verdict.ok()) {
    EndSession(key, verdict.status());
  } else if (verdict->has_value()) {
    Give(SinkOf(stream_id), **std::move(verdict));
  }
}

void Worker::CloseSession(uint64_t stream_id, uint64_t session_id) {
  store_.Close({stream_id, session_id});
}

absl::StatusOr<std::optional<SteadyTime>> Worker::RunPass(SteadyTime now) {
  auto next = RunPassIfDue(now);
  if (observer_ != nullptr) {
    const int32_t block_count = kv_->block_count();
    observer_->OnStore(
        {.sessions = static_cast<int32_t>(store_.size()),
         .kv_usage = static_cast<double>(block_count - store_.free_blocks()) / block_count,
         .evictions = store_.eviction_count(),
         .prefix_queries = stats_.prefix_queries,
         .prefix_hits = stats_.prefix_hits,
         .cached_blocks = store_.cached_blocks()});
  }
  return next;
}

absl::StatusOr<std::optional<SteadyTime>> Worker::RunPassIfDue(SteadyTime now) {
  const std::vector<StoredSession*> waiting = Waiting();
  if (waiting.empty()) return std::optional<SteadyTime>();
  PassPlan plan = builder_.Build(DemandsOf(waiting), now);
  if (plan.runs.empty()) return plan.wake_at;
  std::vector<Run> runs = PinRuns(plan, waiting);
  if (runs.empty()) {
    // All that was planned waits for blocks that older sessions hold: the oldest goes on alone.
    const std::vector<StoredSession*> oldest{waiting.front()};
    plan = builder_.Build(DemandsOf(oldest), now);
    if (plan.runs.empty()) return plan.wake_at;
    runs = PinRuns(plan, oldest);
    SELFSAME_CHECK(!runs.empty());
  }
  const absl::Status status = Execute(runs, now);
  store_.UnpinAll();
  RETURN_IF_ERROR(status);
  for (const Run& run : runs) {
    if (run.session->session.has_ended()) run.session->state->Truncate(0);
  }
  return std::optional<SteadyTime>(now);
}

// Sessions that are owed a verdict, oldest first, with what the prefix cache has of them.
std::vector<StoredSession*> Worker::Waiting() {
  std::vector<StoredSession*> waiting = store_.ByAge();
  std::erase_if(waiting, [](const StoredSession* stored) { return !stored->session.has_work(); });
  for (StoredSession* stored : waiting) {
    const int32_t count = SessionStore::TakeCached(*stored);
    // What a fresh session has is counted when it runs.
    if (!stored->is_fresh) stats_.prefix_hits += count;
  }
  return waiting;
}

std::vector<Demand> Worker::DemandsOf(const std::vector<StoredSession*>& waiting) {
  std::vector<Demand> demands;
  demands.reserve(waiting.size());
  for (const StoredSession* stored : waiting) {
    const Session& session = stored->session;
    Demand demand{.order = stored->order,
                  .prefill_rows = PrefillRows(*stored),
                  .window_rows = {},
                  .waiting_since = session.waiting_since()};
    for (size_t i = 0; i < session.pending_count(); ++i) {
      demand.window_rows.push_back(session.window_rows(i));
    }
    demands.push_back(std::move(demand));
  }
  return demands;
}

// Sessions that find no room are left out and wait for a later pass. Older ones ask first, so that
// the oldest always finds room; what they take a younger one's blocks for voids its own run.
std::vector<Worker::Run> Worker::PinRuns(const PassPlan& plan,
                                         const std::vector<StoredSession*>& waiting) {
  std::map<uint64_t, PlannedRun> planned;
  for (const PlannedRun& run : plan.runs) planned.emplace(run.order, run);
  std::vector<Run> runs;
  for (StoredSession* stored : waiting) {
    const auto it = planned.find(stored->order);
    if (it == planned.end()) continue;
    runs.push_back({stored, it->second, stored->state->length(), stored->is_fresh});
  }
  std::erase_if(runs, [&](const Run& run) {
    return run.session->state->length() != run.settled_length ||
           !store_.ReserveAndPin(*run.session, run.settled_length + run.planned.row_count);
  });
  return runs;
}

void Worker::CountLookups(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    if (!run.is_fresh) continue;
    run.session->is_fresh = false;
    if (!store_.caches_prefixes()) continue;
    stats_.prefix_queries += PrefillLength(run.session->session);
    stats_.prefix_hits += run.session->cached_length;
  }
}

absl::Status Worker::Execute(const std::vector<Run>& runs, SteadyTime now) {
  PassRows rows;
  std::vector<size_t> logit_row_counts;
  logit_row_counts.reserve(runs.size());
  for (const Run& run : runs) {
    logit_row_counts.push_back(AddRows(*run.session, run.planned.row_count, rows));
  }
  const int32_t row_count = rows.row_count();
  const int32_t rung = RungFor(info_.rungs, row_count);
  std::vector<SampledToken> sampled(rows.sampling().size());
  RETURN_IF_ERROR(model_.Run(rows.PaddedTo(rung), *kv_, rows.sampling(), sampled));
  CountLookups(runs);
  ++stats_.passes;
  stats_.rows += row_count;
  stats_.padded_rows += rung - row_count;
  if (observer_ != nullptr) Report(runs, rung, now);

  std::span<const SampledToken> results = sampled;
  for (size_t i = 0; i < runs.size(); ++i) {
    Apply(runs[i], results.first(logit_row_counts[i]));
    results = results.subspan(logit_row_counts[i]);
  }
  return absl::OkStatus();
}

// `now` is when the pass was begun. REQUIRES: an observer; the verdicts are not given yet.
void Worker::Report(const std::vector<Run>& runs, int32_t rung, SteadyTime now) {
  PassReport report;
  report.duration = clock_->Now() - now;
  report.rung = rung;
  for (const Run& run : runs) {
    const Session& session = run.session->session;
    report.oldest_wait =
        std::max<std::chrono::nanoseconds>(report.oldest_wait, now - session.waiting_since());
    const bool is_window = run.planned.window_count > 0;
    (is_window ? report.window_rows : report.prefill_rows) += run.planned.row_count;
    for (size_t i = 0; i < static_cast<size_t>(run.planned.window_count); ++i) {
      observer_->OnWindow(
          {.queue_time = now - session.window_arrival(i), .pass_time = report.duration});
    }
    if (session.is_open() && run.is_fresh && !is_window) ++report.rebuilt_sessions;
  }
  observer_->OnPass(report);
}

void Worker::Give(StreamSink& sink, Verdict verdict) {
  if (observer_ != nullptr) observer_->OnVerdict(verdict.outcome, verdict.window_id == 0);
  sink.OnVerdict(std::move(verdict));
}

// Settles the KV of the run's rows and gives the verdicts their results decide.
void Worker::Apply(const Run& run, std::span<const SampledToken> sampled) {
  Session& session = run.session->session;
  SequenceState& state = *run.session->state;
  const int32_t end = run.settled_length + run.planned.row_count;
  state.Advance(end);
  for (int32_t position = run.settled_length; position < end; ++position) {
    if (!session.NeedsPromptLogprob(position)) continue;
    session.AddPromptLogprob(position, sampled.front());
    sampled = sampled.subspan(1);
  }
  StreamSink& sink = SinkOf(run.session->key.stream_id);
  if (run.planned.window_count > 0) {
    const auto window_count = static_cast<size_t>(run.planned.window_count);
    std::vector<SteadyTime> arrivals;
    for (size_t i = 0; i < session.pending_count(); ++i) {
      arrivals.push_back(session.window_arrival(i));
    }
    std::vector<Verdict> verdicts = session.Decide(window_count, sampled, policy_);
    for (size_t i = 0; i < verdicts.size(); ++i) {
      if (clock_ != nullptr) verdicts[i].verifier_time = clock_->Now() - arrivals[i];
      Give(sink, std::move(verdicts[i]));
    }
    state.Truncate(session.committed_length() - 1);
  } else if (!sampled.empty()) {
    Verdict opening = session.Open(sampled.front());
    opening.cached_tokens = run.session->cached_length;
    Give(sink, std::move(opening));
  }
  SessionStore::Publish(*run.session);
}

void Worker::EndAll(const absl::Status& status) {
  for (const StoredSession* stored : store_.ByAge()) EndSession(stored->key, status);
  for (const auto& [stream_id, sink] : sinks_) sink->OnStreamEnd(status);
  sinks_.clear();
}

void Worker::EndSession(const SessionKey& key, const absl::Status& status) {
  const SessionKey ended = key;  // `key` may belong to the session
  store_.Close(ended);
  if (observer_ != nullptr) observer_->OnSessionError();
  SinkOf(ended.stream_id).OnSessionError(ended.session_id, status);
}

StreamSink& Worker::SinkOf(uint64_t stream_id) {
  const auto it = sinks_.find(stream_id);
  SELFSAME_CHECK(it != sinks_.end());
  return *it->second;
}

WorkerStats Worker::stats() const {
  WorkerStats stats = stats_;
  stats.evictions = store_.eviction_count();
  stats.sessions = static_cast<int64_t>(store_.size());
  stats.free_kv_blocks = store_.free_blocks();
  return stats;
}

}  // namespace selfsame::verifier
