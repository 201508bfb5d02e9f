#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "decoder/engine/types.h"

namespace selfsame::decoder {

struct EngineStats {
  int32_t running_requests = 0;
  int32_t waiting_requests = 0;
  int32_t sessions = 0;  // open on verifiers
  int32_t verifiers_up = 0;
  double kv_usage = 0.0;         // share of the KV blocks in use, 0 to 1
  int32_t free_kv_blocks = 0;    // cached ones included
  int32_t cached_kv_blocks = 0;  // of KV that no request has
  int64_t dequeued = 0;          // requests that have left the queue for good, since the start
  int64_t preemptions = 0;       // requests whose state was freed to make room, since the start
  // Tokens of requests admitted, for the first time or again, since the start; and those of them
  // whose KV was found in the prefix cache.
  int64_t prefix_queries = 0;
  int64_t prefix_hits = 0;
};

struct Submission {
  GenerationRequest request;
  std::shared_ptr<GenerationSink> sink;
};

// What the service needs of an engine. All calls are safe from any thread and never block.
class Engine {
 public:
  virtual ~Engine() = default;
  // Queues requests, all of them or none. RESOURCE_EXHAUSTED when the queue has no room for all;
  // UNAVAILABLE when draining or once the device is lost; FAILED_PRECONDITION for a deterministic
  // request when no verifier is configured. While the verifiers are down a deterministic request
  // waits, up to the failover timeout, and gets OnError(UNAVAILABLE) then. Returns an id for Cancel
  // for each. Sinks get events, perhaps before Submit returns, only if it returns OK. REQUIRES: not
  // empty.
  virtual absl::StatusOr<std::vector<uint64_t>> Submit(std::vector<Submission> submissions) = 0;
  // The same for one.
  absl::StatusOr<uint64_t> Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
    std::vector<Submission> submissions;
    submissions.push_back({std::move(request), std::move(sink)});
    const auto ids = Submit(std::move(submissions));
    if (!ids.ok()) return ids.status();
    return ids->front();
  }
  // The client is gone: frees everything; the sink gets OnError(CANCELLED). Unknown ids are
  // ignored.
  virtual void Cancel(uint64_t id) = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace selfsame::decoder
