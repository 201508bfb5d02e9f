#include "verifier/metrics.h"

#include <utility>
#include <vector>

namespace selfsame::verifier {
namespace {

double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

Counter& AddVerdicts(MetricRegistry& registry, const char* outcome) {
  return registry.AddCounter("selfsame_verifier_verdicts_total",
                             "Verdicts on windows, by outcome; opening ones are apart.",
                             {{"outcome", outcome}});
}

Counter& AddRows(MetricRegistry& registry, const char* kind) {
  return registry.AddCounter("selfsame_verifier_rows_total", "Rows of passes, by kind.",
                             {{"kind", kind}});
}

}  // namespace

struct VerifierMetrics::Handles {
  explicit Handles(MetricRegistry& r)
      : sessions(r.AddGauge("selfsame_verifier_sessions", "Sessions open.")),
        kv_usage(r.AddGauge("selfsame_kv_cache_usage_perc", "Share of the KV in use, 0 to 1.")),
        opened(r.AddCounter("selfsame_verifier_sessions_opened_total", "Sessions opened.")),
        resumed(r.AddCounter("selfsame_verifier_sessions_resumed_total",
                             "Sessions opened with committed tokens.")),
        errors(r.AddCounter("selfsame_verifier_session_errors_total",
                            "Sessions ended or refused with an error.")),
        evictions(
            r.AddCounter("selfsame_verifier_evictions_total", "Sessions whose KV was taken away.")),
        rebuilds(r.AddCounter("selfsame_verifier_rebuilds_total",
                              "Sessions whose KV was computed again.")),
        prefix_queries(r.AddCounter("selfsame_prefix_cache_queries_total",
                                    "Tokens looked up in the prefix cache.")),
        prefix_hits(
            r.AddCounter("selfsame_prefix_cache_hits_total", "Tokens found in the prefix cache.")),
        cached_blocks(r.AddGauge("selfsame_prefix_cache_blocks",
                                 "Blocks of KV that are cached and not in use.")),
        opening_verdicts(AddVerdicts(r, "opening")),
        commits(AddVerdicts(r, "commit")),
        rollbacks(AddVerdicts(r, "rollback")),
        discards(AddVerdicts(r, "discarded")),
        window_rows(AddRows(r, "window")),
        prefill_rows(AddRows(r, "prefill")),
        padding_rows(AddRows(r, "padding")),
        pass_time(r.AddHistogram("selfsame_verifier_pass_seconds", "A pass's forward.",
                                 DurationBounds())),
        queue_time(r.AddHistogram("selfsame_verifier_queue_seconds",
                                  "How long a pass's oldest row had waited.", DurationBounds())),
        window_queue_time(r.AddHistogram("selfsame_verifier_window_queue_seconds",
                                         "From a window's arrival to the pass that takes it.",
                                         DurationBounds())),
        window_pass_time(r.AddHistogram("selfsame_verifier_window_pass_seconds",
                                        "The pass's forward, once for each of its windows.",
                                        DurationBounds())),
        fill(r.AddHistogram("selfsame_verifier_pass_fill", "Share of a pass's rows in use.",
                            {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0})),
        pass_rows(r.AddHistogram("selfsame_verifier_pass_rows", "Rows of a pass, without padding.",
                                 CountBounds())) {}

  Gauge& sessions;
  Gauge& kv_usage;
  Counter& opened;
  Counter& resumed;
  Counter& errors;
  Counter& evictions;
  Counter& rebuilds;
  Counter& prefix_queries;
  Counter& prefix_hits;
  Gauge& cached_blocks;
  Counter& opening_verdicts;
  Counter& commits;
  Counter& rollbacks;
  Counter& discards;
  Counter& window_rows;
  Counter& prefill_rows;
  Counter& padding_rows;
  Histogram& pass_time;
  Histogram& queue_time;
  Histogram& window_queue_time;
  Histogram& window_pass_time;
  Histogram& fill;
  Histogram& pass_rows;
};

VerifierMetrics::VerifierMetrics(MetricRegistry& registry, const VerifierInfo& info)
    : handles_(std::make_unique<Handles>(registry)) {
  registry
      .AddGauge("selfsame_verifier_info", "1; the labels say what the verifier is.",
                {{"fingerprint", info.fingerprint}, {"arithmetic", info.arithmetic}})
      .Set(1);
}

VerifierMetrics::~VerifierMetrics() = default;

void VerifierMetrics::OnSessionOpened(bool is_resumed) {
  handles_->opened.Increment();
  if (is_resumed) handles_->resumed.Increment();
}

void VerifierMetrics::OnSessionError() { handles_->errors.Increment(); }

void VerifierMetrics::OnVerdict(Outcome outcome, bool is_opening) {
  if (is_opening) {
    handles_->opening_verdicts.Increment();
    return;
  }
  switch (outcome) {
    case Outcome::kCommit:
      handles_->commits.Increment();
      break;
    case Outcome::kRollback:
      handles_->rollbacks.Increment();
      break;
    case Outcome::kDiscarded:
      handles_->discards.Increment();
      break;
  }
}

void VerifierMetrics::OnPass(const PassReport& pass) {
  const int32_t row_count = pass.window_rows + pass.prefill_rows;
  handles_->pass_time.Observe(Seconds(pass.duration));
  handles_->queue_time.Observe(Seconds(pass.oldest_wait));
  handles_->fill.Observe(static_cast<double>(row_count) / pass.rung);
  handles_->pass_rows.Observe(row_count);
  handles_->window_rows.Increment(static_cast<uint64_t>(pass.window_rows));
  handles_->prefill_rows.Increment(static_cast<uint64_t>(pass.prefill_rows));
  handles_->padding_rows.Increment(static_cast<uint64_t>(pass.rung - row_count));
  handles_->rebuilds.Increment(static_cast<uint64_t>(pass.rebuilt_sessions));
}

void VerifierMetrics::OnWindow(const WindowReport& window) {
  handles_->window_queue_time.Observe(Seconds(window.queue_time));
  handles_->window_pass_time.Observe(Seconds(window.pass_time));
}

void VerifierMetrics::OnStore(const StoreReport& store) {
  handles_->sessions.Set(store.sessions);
  handles_->kv_usage.Set(store.kv_usage);
  handles_->cached_blocks.Set(store.cached_blocks);
  handles_->evictions.RaiseTo(static_cast<uint64_t>(store.evictions));
  handles_->prefix_queries.RaiseTo(static_cast<uint64_t>(store.prefix_queries));
  handles_->prefix_hits.RaiseTo(static_cast<uint64_t>(store.prefix_hits));
}

}  // namespace selfsame::verifier
