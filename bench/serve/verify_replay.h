#pragma once

#include <cstdint>
#include <queue>
#include <string>
#include <vector>

#include "bench/serve/recording.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "decoder/engine/types.h"

namespace selfsame::bench {

struct ReplayResult {
  int64_t sessions = 0;  // that ended with the last recorded token
  int64_t windows = 0;   // answered with COMMIT
  int64_t failures = 0;  // sessions that ended in any other way
  std::string last_error;
};

// Plays a recording to one verifier: opens each session when its request arrived, submits its
// output in equal windows at the pace at which it was generated, and expects every window to be
// committed. Events come from the link's threads; Run is called once, on a thread of its own.
class VerifyReplay final : public decoder::VerifierEvents {
 public:
  explicit VerifyReplay(std::vector<RecordedRequest> requests);

  // Blocks until every session has ended. `link` must report its events here.
  ReplayResult Run(decoder::VerifierLink& link);

  void OnVerifierUp(int verifier, decoder::VerifierInfo info) override;
  void OnVerifierDown(int verifier, absl::Status status) override;
  void OnVerdict(int verifier, decoder::Verdict verdict) override;
  void OnSessionError(int verifier, uint64_t session_id, absl::Status status) override;

 private:
  // Session i + 1 is that of request i. `window` 0 opens it.
  struct Action {
    SteadyTime at;
    size_t request = 0;
    int32_t window = 0;
  };
  struct IsLater {
    bool operator()(const Action& a, const Action& b) const { return a.at > b.at; }
  };
  struct Session {
    bool is_open = false;
    bool has_ended = false;
  };

  int32_t WindowCount(const RecordedRequest& request) const;
  decoder::Window MakeWindow(size_t index, int32_t window) const;
  void Perform(const Action& action, decoder::VerifierLink& link);
  void Schedule(size_t index, SteadyTime start);
  void End(size_t index, bool is_success) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<RecordedRequest> requests_;
  std::priority_queue<Action, std::vector<Action>, IsLater> actions_;  // Run's thread only

  Mutex mutex_;
  CondVar changed_;
  bool is_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_unfit_ ABSL_GUARDED_BY(mutex_) = false;  // the verifier has another vocabulary or limit
  std::vector<Session> sessions_ ABSL_GUARDED_BY(mutex_);
  size_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  ReplayResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace selfsame::bench
