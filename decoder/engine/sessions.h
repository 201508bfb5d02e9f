#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "decoder/engine/engine_observer.h"
#include "decoder/engine/request.h"
#include "decoder/engine/types.h"
#include "decoder/engine/window_policy.h"

namespace selfsame::decoder {

struct SessionOptions {
  int32_t window_size = 64;  // candidates in a window, at most
  // How long a request may be without a verifier before it fails.
  std::chrono::milliseconds failover_timeout{30000};
  // A verifier that owes verdicts and gives none of any session for so long is lost. It has as much
  // again for each kTokensOfVerdictTimeout tokens of the sessions it owes them to, since it may
  // have to prefill them first.
  std::chrono::milliseconds verdict_timeout{30000};
};

inline constexpr int32_t kTokensOfVerdictTimeout = 1024;
// A session that is owed a verdict for so many times as long, while others get theirs, is moved.
inline constexpr int32_t kVerdictTimeoutsOfSession = 10;

// The verifiers and the deterministic requests' sessions on them: opens, reopens elsewhere after a
// loss, submits windows, takes verdicts. Speculation holds each request's state; this class moves
// it between verifiers. One thread; never blocks. Owns neither links nor requests; a request must
// be closed before it goes.
class Sessions {
 public:
  Sessions(const SessionOptions& options, const std::vector<VerifierLink*>& links,
           WindowPolicy& policy, EngineObserver& observer);

  // Events from verifiers.

  void OnUp(int verifier, VerifierInfo info, SteadyTime now);
  void OnDown(int verifier, const absl::Status& status, SteadyTime now);
  // The verifier broke the protocol: resets the link and counts as a loss of the verifier.
  void Break(int verifier, const absl::Status& reason, SteadyTime now);

  struct Applied {
    Request* request = nullptr;
    SpeculationEffect effect;
  };
  // Empty for a verdict that comes late (its session is closed), and for one that breaks the
  // protocol.
  std::optional<Applied> OnVerdict(int verifier, const Verdict& verdict, SteadyTime now);

  // Returns the request to fail with `status`; null when the session is to be tried again, or gone.
  Request* OnSessionError(int verifier, uint64_t session_id, const absl::Status& status,
                          SteadyTime now);

  // For each step.

  // Gives up verifiers, and sessions, whose verdicts are overdue.
  void ExpireVerdicts(SteadyTime now);
  // Whether `request`, which has no session, could have one now. When not, and for longer than the
  // failover timeout, or when no verifier can ever serve it: an error, with which it must fail.
  absl::StatusOr<bool> Seek(Request& request, SteadyTime now);
  // Opens the session. REQUIRES: Seek just returned true.
  void Open(Request& request, SteadyTime now);
  void Close(Request& request);
  // Whether decoding on is of use: the answer has not come to its end, and not too much waits for
  // the verifier.
  bool WantsCandidate(const Verification& verification) const;
  // Submits the windows that are due, of all sessions.
  void CutWindows(SteadyTime now);

  // When `request` needs a look although nothing happens to it; empty: never.
  std::optional<SteadyTime> NextWake(const Request& request, SteadyTime now) const;

  bool has_verifiers() const { return !verifiers_.empty(); }
  int32_t session_count() const { return static_cast<int32_t>(sessions_.size()); }
  int32_t verifiers_up() const;

 private:
  struct Verifier {
    VerifierLink* link = nullptr;
    std::optional<VerifierInfo> info;  // while it is up
    absl::Status last_error;
    int32_t session_count = 0;
    SteadyTime last_answer;    // when it came up, or last said what was believed
    SteadyTime suspect_until;  // until then others are preferred: it broke a promise
  };

  Verifier& at(int verifier) { return verifiers_[static_cast<size_t>(verifier)]; }
  bool IsFit(const Verifier& verifier, const Request& request) const;
  bool HasRoom(const Verifier& verifier) const;
  // The verifier with the fewest sessions among those that are fit and have room, suspects and the
  // one that refused the request last come last; -1: none.
  int Choose(const Request& request, SteadyTime now) const;
  absl::Status CheckPatience(const Request& request, SteadyTime now) const;
  void Report(const Verdict& verdict, const SpeculationEffect& effect, Verification& verification,
              SteadyTime now);
  // Since when the session's oldest verdict has been owed; empty: none is. REQUIRES: a session.
  static std::optional<SteadyTime> OwedSince(const Verification& verification);
  // How long verdicts may be owed to the session while its verifier is silent.
  std::chrono::milliseconds VerdictPatience(const Verification& verification) const;
  // When the session's verdict makes its verifier count as lost, and when the session alone;
  // whichever is sooner. REQUIRES: owed since `owed_since`.
  SteadyTime VerdictDeadline(const Verification& verification, SteadyTime owed_since) const;
  void LoseSession(Request& request, const absl::Status& status, SteadyTime now);
  void LoseSessions(int verifier, const absl::Status& status, SteadyTime now);
  // Forgets the session without telling the verifier.
  void Forget(Request& request);
  void CutWindowsOf(Request& request, bool is_verifier_idle, SteadyTime now);

  SessionOptions options_;
  std::vector<Verifier> verifiers_;
  WindowPolicy& policy_;
  EngineObserver& observer_;
  std::map<uint64_t, Request*> sessions_;  // by session id
  uint64_t next_session_id_ = 1;
};

}  // namespace selfsame::decoder
