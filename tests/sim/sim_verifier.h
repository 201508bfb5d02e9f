#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "tests/sim/random.h"
#include "tests/sim/sim_model.h"
#include "tests/sim/world.h"
#include "verifier/engine/worker.h"

namespace selfsame::sim {

struct VerifierSetup {
  int32_t context_limit = 0;
  int32_t kv_block_count = 0;
  int32_t max_window_size = 0;
  int32_t max_rows = 0;
  int32_t max_sessions = 0;
  bool enable_prefix_caching = true;
  Micros max_wait{0};
  Micros max_pass_time{0};
};

// What a verifier says on a stream.
struct SessionFailure {
  uint64_t session_id = 0;
  absl::Status status;
};
struct StreamEnd {
  absl::Status status;
};
using VerifierAnswer = std::variant<verifier::Verdict, SessionFailure, StreamEnd>;

// What a decoder says.
struct SessionClosing {
  uint64_t session_id = 0;
};
using VerifierMessage = std::variant<verifier::SessionOpening, verifier::Window, SessionClosing>;

// The real Worker in the place of its thread's loop, on simulated time: takes in what has come,
// runs a pass, and is busy for as long as the pass takes; answers leave at its end. Checks that
// every window has exactly one verdict, in order, while its stream and session live.
class SimVerifier {
 public:
  using AnswerSink = std::function<void(VerifierAnswer)>;

  SimVerifier(World& world, int index, const VerifierSetup& setup, verifier::WindowPolicy policy,
              Random random);

  // The process comes up, with nothing in memory. `weights` belong to the fingerprint.
  void Start(uint64_t weights);
  // The process is gone; streams hear nothing more. `on_crash` of each open stream is called.
  void Crash();
  // Ends all sessions and streams in good order, then the process.
  void Drain();

  bool is_up() const { return worker_ != nullptr; }
  const verifier::VerifierInfo& info() const { return worker_->info(); }
  // REQUIRES: is_up(). `on_crash` is called when the connection breaks with the process.
  uint64_t OpenStream(AnswerSink sink, std::function<void()> on_crash);
  // Ignored for streams of an earlier life of the process.
  void Post(uint64_t stream_id, VerifierMessage message);
  void CloseStream(uint64_t stream_id);

  // Everything is closed: fails when a session or a block is left.
  void CheckEmpty();
  const verifier::WorkerStats& totals() const { return totals_; }

 private:
  struct Session {
    std::deque<uint64_t> windows;  // without a verdict
    bool is_open = false;          // the opening verdict was given
  };
  struct Stream {
    AnswerSink sink;
    std::function<void()> on_crash;
    std::map<uint64_t, Session> sessions;
    // Ids that were misused; what the worker owes to them is not checked.
    std::set<uint64_t> misused;
  };
  struct Closed {};
  struct Entry {
    uint64_t stream_id = 0;
    std::variant<VerifierMessage, Closed> what;
  };
  class Sink;

  void Enqueue(Entry entry);
  void ScheduleWake(SteadyTime time);
  void Wake();
  void Dispatch(Entry entry);
  void Answer(uint64_t stream_id, VerifierAnswer answer);
  void CheckVerdict(Stream& stream, const verifier::Verdict& verdict);
  void AddTotals();

  World& world_;
  const int index_;
  const VerifierSetup setup_;
  const verifier::WindowPolicy policy_;
  Random random_;

  std::unique_ptr<SimModel> model_;
  std::unique_ptr<verifier::Worker> worker_;
  std::map<uint64_t, Stream> streams_;
  uint64_t next_stream_id_ = 1;  // over all lives
  std::deque<Entry> inbox_;
  int life_ = 0;  // events of an earlier one are void
  SteadyTime busy_until_;
  SteadyTime answers_leave_at_;
  Micros pass_time_{0};
  std::optional<SteadyTime> wake_at_;
  verifier::WorkerStats totals_;
};

}  // namespace selfsame::sim
