#pragma once

#include <cstdint>
#include <string>

namespace selfsame::sim {

struct SimulationOptions {
  uint64_t seed = 0;
  bool prints_trace = false;
  // The verifier commits every candidate unseen: what must not get past the checks.
  bool commits_everything = false;
};

// What happened; summed over seeds it shows that every case was there.
struct Counts {
  int64_t requests = 0;
  int64_t completed = 0;
  int64_t deterministic_completed = 0;
  int64_t steps = 0;
  int64_t passes = 0;
  int64_t windows = 0;
  int64_t mismatches = 0;  // of the fast path
  int64_t rollbacks = 0;
  int64_t sessions = 0;
  int64_t evictions = 0;
  int64_t preemptions = 0;
  int64_t prefix_hits = 0;  // positions decoders found in their prefix caches
  int64_t verifier_prefix_hits = 0;
  int64_t streams = 0;
  int64_t mutes = 0;
  int64_t garbage = 0;
  int64_t crashes = 0;
  int64_t drains = 0;
  int64_t restarts = 0;
  int64_t rogue_messages = 0;
  int64_t candidates = 0;  // streamed
  int64_t retracts = 0;
  int64_t continuations = 0;  // of a broken stream
  int64_t resumed_completed = 0;

  void Add(const Counts& other);
  std::string ToString() const;
};

struct SimulationResult {
  std::string failure;  // the first broken invariant; empty: none
  uint64_t trace_hash = 0;
  Counts counts;
};

// One simulation: decoders, verifiers, clients and faults, all drawn from the seed, until the last
// request has ended. The same options give the same trace.
SimulationResult RunSimulation(const SimulationOptions& options);

}  // namespace selfsame::sim
