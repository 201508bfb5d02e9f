#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/kv/kv_cache.h"
#include "common/model/forward_model.h"
#include "verifier/engine/engine_observer.h"
#include "verifier/engine/pass_builder.h"
#include "verifier/engine/session_store.h"
#include "verifier/engine/types.h"
#include "verifier/engine/verdict.h"

namespace selfsame::verifier {

struct WorkerStats {
  int64_t passes = 0;
  int64_t rows = 0;         // without padding
  int64_t padded_rows = 0;  // padding alone
  int64_t evictions = 0;
  // Positions of sessions whose computation began, or began anew; and those of them whose KV was
  // found in the prefix cache.
  int64_t prefix_queries = 0;
  int64_t prefix_hits = 0;
  int64_t sessions = 0;        // open now
  int32_t free_kv_blocks = 0;  // cached ones included
};

// The engine without its thread: sessions, passes, verdicts. The caller gives the time and calls
// RunPass while there is something to do. One thread.
class Worker {
 public:
  // `info.rungs` are those the self-test left; the largest is within the model's limits and holds a
  // window. The cache has room for one session of the context limit. `model` must outlive the
  // worker.
  Worker(ForwardModel& model, std::unique_ptr<KvCache> kv, VerifierInfo info,
         std::chrono::nanoseconds max_wait, WindowPolicy policy, bool enable_prefix_caching = true);

  // Who is told what happens, and the clock that passes are measured by. Both must outlive the
  // worker.
  void SetObserver(EngineObserver& observer, const Clock& clock);

  void OpenStream(uint64_t stream_id, std::shared_ptr<StreamSink> sink);
  // Frees the stream's sessions without a word to its sink.
  void CloseStream(uint64_t stream_id);

  // Messages of open streams. What is wrong with them becomes a session error.
  void OpenSession(uint64_t stream_id, SessionOpening opening, SteadyTime now);
  void SubmitWindow(uint64_t stream_id, Window window, SteadyTime now);
  void CloseSession(uint64_t stream_id, uint64_t session_id);

  // Runs at most one pass and gives its verdicts. Returns when to be called again without a
  // message: at once after a pass, or at the end of a wait budget; nothing when no work is left. An
  // error means that the device is lost.
  absl::StatusOr<std::optional<SteadyTime>> RunPass(SteadyTime now);

  // Ends all sessions with `status`, then all streams.
  void EndAll(const absl::Status& status);

  const VerifierInfo& info() const { return info_; }
  WorkerStats stats() const;

 private:
  // A session's part of the pass being run.
  struct Run {
    StoredSession* session = nullptr;
    PlannedRun planned;
    int32_t settled_length = 0;  // when planned
    bool is_fresh = false;       // the first rows since the session had no KV
  };

  absl::StatusOr<std::optional<SteadyTime>> RunPassIfDue(SteadyTime now);
  std::vector<StoredSession*> Waiting();
  static std::vector<Demand> DemandsOf(const std::vector<StoredSession*>& waiting);
  // Counts what the prefix cache gave to sessions that run for the first time since they had no KV.
  void CountLookups(const std::vector<Run>& runs);
  std::vector<Run> PinRuns(const PassPlan& plan, const std::vector<StoredSession*>& waiting);
  absl::Status Execute(const std::vector<Run>& runs, SteadyTime now);
  void Report(const std::vector<Run>& runs, int32_t rung, SteadyTime now);
  void Give(StreamSink& sink, Verdict verdict);
  void Apply(const Run& run, std::span<const SampledToken> sampled);
  void EndSession(const SessionKey& key, const absl::Status& status);
  StreamSink& SinkOf(uint64_t stream_id);

  ForwardModel& model_;
  std::unique_ptr<KvCache> kv_;
  const VerifierInfo info_;
  const WindowPolicy policy_;
  PassBuilder builder_;
  SessionStore store_;
  std::map<uint64_t, std::shared_ptr<StreamSink>> sinks_;
  WorkerStats stats_;
  EngineObserver* observer_ = nullptr;  // with clock_: both or none
  const Clock* clock_ = nullptr;
};

}  // namespace selfsame::verifier
