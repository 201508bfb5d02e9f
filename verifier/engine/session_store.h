#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/block_pool.h"
#include "common/kv/sequence_state.h"
#include "verifier/engine/session.h"

namespace selfsame::verifier {

struct SessionKey {
  uint64_t stream_id = 0;
  uint64_t session_id = 0;
  bool operator<(const SessionKey& other) const {
    return std::pair(stream_id, session_id) < std::pair(other.stream_id, other.session_id);
  }
};

// A session and its canonical state. The state's length is the settled KV and never reaches the
// newest committed token, which is the next row's input; it may be shorter, down to 0, after an
// eviction, and is then computed again.
struct StoredSession {
  SessionKey key;
  uint64_t order = 0;      // rises with each opening
  uint64_t last_used = 0;  // pass number
  bool is_pinned = false;  // belongs to the pass being built or run
  Session session;
  std::unique_ptr<SequenceState> state;
};

// All sessions and the KV blocks they hold. When blocks run short it takes them from other
// sessions:
//  1. from idle ones, least recently used first, but for the oldest session;
//  2. from younger ones that wait for verdicts, youngest first;
//  3. from the oldest one, when it is idle.
// Pinned sessions keep their blocks. So the oldest session that waits for a verdict always finds
// room for one whole context, if it asks before anything is pinned: the store never locks up.
// One thread.
class SessionStore {
 public:
  // REQUIRES: the pool has room for one session of the context limit.
  SessionStore(int32_t block_count, int32_t max_sessions)
      : pool_(block_count), max_sessions_(max_sessions) {}

  // INVALID_ARGUMENT when the id is in use on this stream, RESOURCE_EXHAUSTED when there are
  // max_sessions.
  absl::StatusOr<StoredSession*> Open(const SessionKey& key, Session session);
  // Null when there is none.
  StoredSession* Find(const SessionKey& key);
  // Frees the session and its blocks. REQUIRES: not pinned.
  void Close(const SessionKey& key);
  // Session ids of a stream, ascending.
  std::vector<uint64_t> SessionsOf(uint64_t stream_id) const;
  // All sessions in order of opening; valid until one is opened or closed.
  std::vector<StoredSession*> ByAge();

  // Makes room for positions below `length` of `session` and pins it. False, with the session as it
  // was, when what others hold cannot be taken.
  [[nodiscard]] bool ReserveAndPin(StoredSession& session, int32_t length);
  // The pass is over: its sessions count as just used.
  void UnpinAll();

  size_t size() const { return sessions_.size(); }
  int32_t free_blocks() const { return pool_.free_count(); }
  // Sessions whose blocks were taken away.
  int64_t eviction_count() const { return eviction_count_; }

 private:
  StoredSession* Oldest();
  StoredSession* ChooseVictim(const StoredSession& requester);

  BlockPool pool_;  // outlives the states
  const int32_t max_sessions_;
  std::map<SessionKey, std::unique_ptr<StoredSession>> sessions_;
  uint64_t next_order_ = 0;
  uint64_t pass_number_ = 1;
  int64_t eviction_count_ = 0;
};

}  // namespace selfsame::verifier
