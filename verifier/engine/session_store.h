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
// eviction, and is then computed again, but for what the prefix cache has.
struct StoredSession {
  SessionKey key;
  uint64_t order = 0;      // rises with each opening
  uint64_t last_used = 0;  // pass number
  bool is_pinned = false;  // belongs to the pass being built or run
  // No row has run since the state was empty.
  bool is_fresh = true;
  int32_t cached_length = 0;  // positions that are there from the prefix cache
  Session session;
  std::unique_ptr<SequenceState> state;
};

// All sessions and the KV blocks they hold. When blocks run short it takes them from other
// sessions:
//  1. from idle ones, least recently used first, but for the oldest session;
//  2. from younger ones that wait for verdicts, youngest first;
//  3. from the oldest one, when it is idle.
// Pinned sessions keep their blocks; blocks that are only cached go before any of these. So the
// oldest session that waits for a verdict always finds room for one whole context, if it asks
// before anything is pinned: the store never locks up. Settled KV is published to a prefix cache
// that all sessions share. One thread.
class SessionStore {
 public:
  // REQUIRES: the pool has room for one session of the context limit.
  SessionStore(int32_t block_count, int32_t max_sessions, bool enable_prefix_caching = true)
      : pool_(block_count, enable_prefix_caching), max_sessions_(max_sessions) {}

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

  // Gives a session what the prefix cache has of it beyond its own KV, all but its newest committed
  // token at most; nothing while the session needs all rows of its prompt. How many positions that
  // was.
  static int32_t TakeCached(StoredSession& session);
  // Lets others take over the settled KV of `session`. REQUIRES: its pass is over.
  static void Publish(StoredSession& session);

  // Makes room for positions below `length` of `session` and pins it. False, with the session as it
  // was, when what others hold cannot be taken.
  [[nodiscard]] bool ReserveAndPin(StoredSession& session, int32_t length);
  // The pass is over: its sessions count as just used.
  void UnpinAll();

  size_t size() const { return sessions_.size(); }
  int32_t free_blocks() const { return pool_.free_count(); }
  // Blocks without a session that the prefix cache holds; part of the free ones.
  int32_t cached_blocks() const { return pool_.cached_count(); }
  bool caches_prefixes() const { return pool_.caches_prefixes(); }
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
