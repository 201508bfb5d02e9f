#include "decoder/metrics.h"

#include <array>
#include <string>
#include <utility>

namespace selfsame::decoder {
namespace {

constexpr size_t kStatusCodeCount = 17;  // gRPC's, from 0

double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

size_t IndexOf(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < kStatusCodeCount ? index : static_cast<size_t>(absl::StatusCode::kUnknown);
}

// "ok", "deadline_exceeded", ...
std::string OutcomeName(size_t code) {
  std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

// A metric for ordinary requests and one for deterministic ones.
template <typename Metric>
class ByKind {
 public:
  template <typename Add>
  explicit ByKind(const Add& add)
      : metrics_{&add({{"is_deterministic", "false"}}), &add({{"is_deterministic", "true"}})} {}
  Metric& of(bool is_deterministic) { return *metrics_[is_deterministic ? 1 : 0]; }

 private:
  std::array<Metric*, 2> metrics_;
};

ByKind<Counter> AddCounters(MetricRegistry& registry, const char* name, const char* help) {
  return ByKind<Counter>([&](MetricLabels labels) -> Counter& {
    return registry.AddCounter(name, help, std::move(labels));
  });
}

ByKind<Histogram> AddDurations(MetricRegistry& registry, const char* name, const char* help) {
  return ByKind<Histogram>([&](MetricLabels labels) -> Histogram& {
    return registry.AddHistogram(name, help, DurationBounds(), std::move(labels));
  });
}

// Ends by status code; [is_deterministic][code].
using EndCounters = std::array<std::array<Counter*, kStatusCodeCount>, 2>;

EndCounters AddEnds(MetricRegistry& registry) {
  EndCounters ends{};
  for (const bool is_deterministic : {false, true}) {
    for (size_t code = 0; code < kStatusCodeCount; ++code) {
      ends[is_deterministic ? 1 : 0][code] = &registry.AddCounter(
          "selfsame_requests_total", "Requests that ended, refused ones included, by status.",
          {{"outcome", OutcomeName(code)},
           {"is_deterministic", is_deterministic ? "true" : "false"}});
    }
  }
  return ends;
}

std::vector<double> WithZero(std::vector<double> bounds) {
  bounds.insert(bounds.begin(), 0.0);
  return bounds;
}

}  // namespace

struct DecoderMetrics::Handles {
  explicit Handles(MetricRegistry& r)
      : running(r.AddGauge("selfsame_num_requests_running", "Requests that hold KV.")),
        waiting(r.AddGauge("selfsame_num_requests_waiting", "Requests that wait for KV.")),
        kv_usage(r.AddGauge("selfsame_kv_cache_usage_perc", "Share of the KV in use, 0 to 1.")),
        prefix_queries(r.AddCounter("selfsame_prefix_cache_queries_total",
                                    "Tokens looked up in the prefix cache.")),
        prefix_hits(
            r.AddCounter("selfsame_prefix_cache_hits_total", "Tokens found in the prefix cache.")),
        cached_blocks(r.AddGauge("selfsame_prefix_cache_blocks",
                                 "Blocks of KV that are cached and not in use.")),
        verifiers(r.AddGauge("selfsame_verifiers_up", "Verifiers connected.")),
        sessions(r.AddGauge("selfsame_sessions", "Sessions open on verifiers.")),
        ends(AddEnds(r)),
        successes{&r.AddCounter("selfsame_request_success_total", "Requests served to their end.",
                                {{"finished_reason", "stop"}}),
                  &r.AddCounter("selfsame_request_success_total", "Requests served to their end.",
                                {{"finished_reason", "length"}})},
        prompt_tokens(AddCounters(r, "selfsame_prompt_tokens_total", "Prompt tokens prefilled.")),
        generation_tokens(
            AddCounters(r, "selfsame_generation_tokens_total", "Tokens given to clients.")),
        first_token(AddDurations(r, "selfsame_time_to_first_token_seconds",
                                 "From arrival to the first token.")),
        inter_token(AddDurations(r, "selfsame_inter_token_latency_seconds",
                                 "Between tokens; those that come together share the time.")),
        latency(AddDurations(r, "selfsame_e2e_request_latency_seconds",
                             "From arrival to the last token, of requests served to their end.")),
        queue_time(AddDurations(r, "selfsame_request_queue_time_seconds",
                                "From arrival to the first step or session.")),
        step_rows(r.AddHistogram("selfsame_step_rows", "Rows of a step.", CountBounds())),
        step_requests(
            r.AddHistogram("selfsame_step_requests", "Requests in a step.", CountBounds())),
        step_time(
            r.AddHistogram("selfsame_step_seconds", "A step's forward pass.", DurationBounds())),
        preemptions(r.AddCounter("selfsame_num_preemptions_total",
                                 "Requests whose KV was taken away, to be computed again.")),
        waiting_steps(r.AddCounter("selfsame_steps_waited_for_verdict_total",
                                   "Steps that left ordinary rows out for want of a verdict.")),
        waiting_rows(r.AddCounter("selfsame_ordinary_rows_waited_for_verdict_total",
                                  "Ordinary rows that were left out for want of a verdict.")),
        opened(r.AddCounter("selfsame_sessions_opened_total", "Sessions opened.")),
        failovers(r.AddCounter("selfsame_failovers_total",
                               "Sessions opened anew for a request that had lost one.")),
        windows(r.AddCounter("selfsame_windows_total", "Windows submitted.")),
        window_size(
            r.AddHistogram("selfsame_window_size", "Candidates in a window.", CountBounds())),
        commits(r.AddCounter("selfsame_windows_committed_total", "Windows committed whole.")),
        discards(r.AddCounter("selfsame_windows_discarded_total",
                              "Windows void because of a rollback before them.")),
        rollbacks(r.AddCounter("selfsame_rollbacks_total",
                               "Verdicts that dropped a candidate for another token.")),
        rolled_back(r.AddCounter("selfsame_rolled_back_tokens_total", "Candidates dropped.")),
        redecoded(r.AddCounter("selfsame_redecoded_tokens_total",
                               "Candidates at a position that had one before.")),
        mismatch(r.AddHistogram("selfsame_first_mismatch_position",
                                "Index in its window of the first candidate that differs.",
                                WithZero(CountBounds()))),
        verify(r.AddHistogram("selfsame_verify_latency_seconds",
                              "From submitting a window to its commit or rollback.",
                              DurationBounds())),
        network(r.AddHistogram("selfsame_verify_network_seconds",
                               "The part of it that the verifier does not account for.",
                               DurationBounds())),
        opening(r.AddHistogram("selfsame_session_opening_seconds",
                               "From opening a session to its first verdict.", DurationBounds())) {}

  Gauge& running;
  Gauge& waiting;
  Gauge& kv_usage;
  Counter& prefix_queries;
  Counter& prefix_hits;
  Gauge& cached_blocks;
  Gauge& verifiers;
  Gauge& sessions;
  EndCounters ends;
  std::array<Counter*, 2> successes;  // by FinishReason
  ByKind<Counter> prompt_tokens;
  ByKind<Counter> generation_tokens;
  ByKind<Histogram> first_token;
  ByKind<Histogram> inter_token;
  ByKind<Histogram> latency;
  ByKind<Histogram> queue_time;
  Histogram& step_rows;
  Histogram& step_requests;
  Histogram& step_time;
  Counter& preemptions;
  Counter& waiting_steps;
  Counter& waiting_rows;
  Counter& opened;
  Counter& failovers;
  Counter& windows;
  Histogram& window_size;
  Counter& commits;
  Counter& discards;
  Counter& rollbacks;
  Counter& rolled_back;
  Counter& redecoded;
  Histogram& mismatch;
  Histogram& verify;
  Histogram& network;
  Histogram& opening;
};

DecoderMetrics::DecoderMetrics(MetricRegistry& registry)
    : handles_(std::make_unique<Handles>(registry)) {}

DecoderMetrics::~DecoderMetrics() = default;

void DecoderMetrics::OnStats(const EngineStats& stats) {
  handles_->running.Set(stats.running_requests);
  handles_->waiting.Set(stats.waiting_requests);
  handles_->kv_usage.Set(stats.kv_usage);
  handles_->prefix_queries.RaiseTo(static_cast<uint64_t>(stats.prefix_queries));
  handles_->prefix_hits.RaiseTo(static_cast<uint64_t>(stats.prefix_hits));
  handles_->cached_blocks.Set(stats.cached_kv_blocks);
  handles_->verifiers.Set(stats.verifiers_up);
  handles_->sessions.Set(stats.sessions);
  // The engine thread alone adds to this counter.
  const uint64_t known = handles_->preemptions.value();
  handles_->preemptions.Increment(static_cast<uint64_t>(stats.preemptions) - known);
}

void DecoderMetrics::OnStep(const StepReport& step) {
  handles_->step_rows.Observe(step.row_count);
  handles_->step_requests.Observe(step.request_count);
  handles_->step_time.Observe(Seconds(step.duration));
}

void DecoderMetrics::OnOrdinaryWait(int32_t request_count) {
  handles_->waiting_steps.Increment();
  handles_->waiting_rows.Increment(static_cast<uint64_t>(request_count));
}

void DecoderMetrics::OnRefused(bool is_deterministic, absl::StatusCode code) {
  handles_->ends[is_deterministic ? 1 : 0][IndexOf(code)]->Increment();
}

void DecoderMetrics::OnStarted(bool is_deterministic, std::chrono::nanoseconds queue_time) {
  handles_->queue_time.of(is_deterministic).Observe(Seconds(queue_time));
}

void DecoderMetrics::OnTokens(const TokensReport& tokens) {
  const auto count = static_cast<uint64_t>(tokens.token_count);
  handles_->generation_tokens.of(tokens.is_deterministic).Increment(count);
  if (tokens.is_first) {
    handles_->prompt_tokens.of(tokens.is_deterministic)
        .Increment(static_cast<uint64_t>(tokens.prompt_length));
    handles_->first_token.of(tokens.is_deterministic).Observe(Seconds(tokens.since));
  } else if (count > 0) {
    handles_->inter_token.of(tokens.is_deterministic)
        .Observe(Seconds(tokens.since) / static_cast<double>(count), count);
  }
}

void DecoderMetrics::OnEnd(const EndReport& end) {
  handles_->ends[end.is_deterministic ? 1 : 0][IndexOf(end.code)]->Increment();
  if (end.code != absl::StatusCode::kOk) return;
  handles_->successes[end.reason == FinishReason::kStop ? 0 : 1]->Increment();
  handles_->latency.of(end.is_deterministic).Observe(Seconds(end.age));
}

void DecoderMetrics::OnSessionOpened(bool is_reopened) {
  handles_->opened.Increment();
  if (is_reopened) handles_->failovers.Increment();
}

void DecoderMetrics::OnWindow(int32_t size) {
  handles_->windows.Increment();
  handles_->window_size.Observe(size);
}

void DecoderMetrics::OnRedecoded() { handles_->redecoded.Increment(); }

void DecoderMetrics::OnVerdict(const VerdictReport& verdict) {
  if (verdict.outcome != Outcome::kDiscarded) {
    (verdict.is_opening ? handles_->opening : handles_->verify).Observe(Seconds(verdict.latency));
    if (verdict.network_time) handles_->network.Observe(Seconds(*verdict.network_time));
  }
  if (verdict.is_rollback) handles_->rollbacks.Increment();
  handles_->rolled_back.Increment(static_cast<uint64_t>(verdict.dropped));
  if (verdict.is_opening) return;
  switch (verdict.outcome) {
    case Outcome::kCommit:
      handles_->commits.Increment();
      break;
    case Outcome::kRollback:
      handles_->mismatch.Observe(verdict.mismatch_index);
      break;
    case Outcome::kDiscarded:
      handles_->discards.Increment();
      break;
  }
}

}  // namespace selfsame::decoder
