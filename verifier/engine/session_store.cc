#include "verifier/engine/session_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"

namespace selfsame::verifier {

absl::StatusOr<StoredSession*> SessionStore::Open(const SessionKey& key, Session session) {
  if (sessions_.contains(key)) {
    return InvalidArgumentError("session_id", absl::StrCat(key.session_id, " is already in use"));
  }
  if (sessions_.size() >= static_cast<size_t>(max_sessions_)) {
    return ResourceExhaustedError(
        absl::StrCat("the verifier has its limit of ", max_sessions_, " sessions"),
        kSessionRetryMs);
  }
  auto stored = std::make_unique<StoredSession>(
      StoredSession{.key = key,
                    .order = next_order_++,
                    .last_used = pass_number_,
                    .is_pinned = false,
                    .is_fresh = true,
                    .cached_length = 0,
                    .session = std::move(session),
                    .state = std::make_unique<PagedSequenceState>(pool_)});
  return sessions_.emplace(key, std::move(stored)).first->second.get();
}

StoredSession* SessionStore::Find(const SessionKey& key) {
  const auto it = sessions_.find(key);
  return it == sessions_.end() ? nullptr : it->second.get();
}

void SessionStore::Close(const SessionKey& key) {
  const auto it = sessions_.find(key);
  if (it == sessions_.end()) return;
  SELFSAME_CHECK(!it->second->is_pinned);
  sessions_.erase(it);
}

std::vector<uint64_t> SessionStore::SessionsOf(uint64_t stream_id) const {
  std::vector<uint64_t> ids;
  for (auto it = sessions_.lower_bound({stream_id, 0});
       it != sessions_.end() && it->first.stream_id == stream_id; ++it) {
    ids.push_back(it->first.session_id);
  }
  return ids;
}

std::vector<StoredSession*> SessionStore::ByAge() {
  std::vector<StoredSession*> result;
  result.reserve(sessions_.size());
  for (const auto& [key, stored] : sessions_) result.push_back(stored.get());
  std::sort(result.begin(), result.end(),
            [](const auto* a, const auto* b) { return a->order < b->order; });
  return result;
}

int32_t SessionStore::TakeCached(StoredSession& stored) {
  const Session& session = stored.session;
  SequenceState& state = *stored.state;
  if (state.block_count() == 0) {
    stored.is_fresh = true;
    stored.cached_length = 0;
  }
  if (session.needs_all_prompt_rows()) return 0;
  const int32_t before = state.length();
  state.TakeCached([&](int32_t position) { return session.TokenAt(position); },
                   session.committed_length() - 1);
  stored.cached_length += state.length() - before;
  return state.length() - before;
}

void SessionStore::Publish(StoredSession& stored) {
  const Session& session = stored.session;
  stored.state->Publish([&](int32_t position) { return session.TokenAt(position); },
                        session.committed_length());
}

bool SessionStore::ReserveAndPin(StoredSession& session, int32_t length) {
  while (!session.state->Reserve(length)) {
    StoredSession* victim = ChooseVictim(session);
    if (victim == nullptr) return false;
    victim->state->Truncate(0);
    ++eviction_count_;
  }
  session.is_pinned = true;
  return true;
}

void SessionStore::UnpinAll() {
  for (const auto& [key, stored] : sessions_) {
    if (stored->is_pinned) stored->last_used = pass_number_;
    stored->is_pinned = false;
  }
  ++pass_number_;
}

StoredSession* SessionStore::Oldest() {
  StoredSession* oldest = nullptr;
  for (const auto& [key, stored] : sessions_) {
    if (oldest == nullptr || stored->order < oldest->order) oldest = stored.get();
  }
  return oldest;
}

StoredSession* SessionStore::ChooseVictim(const StoredSession& requester) {
  StoredSession* const oldest = Oldest();
  StoredSession* idle = nullptr;
  StoredSession* younger = nullptr;
  for (const auto& [key, owned] : sessions_) {
    StoredSession* stored = owned.get();
    if (stored == &requester || stored == oldest || stored->is_pinned ||
        stored->state->block_count() == 0) {
      continue;
    }
    if (!stored->session.has_work()) {
      if (idle == nullptr || stored->last_used < idle->last_used ||
          (stored->last_used == idle->last_used && stored->order > idle->order)) {
        idle = stored;
      }
    } else if (stored->order > requester.order &&
               (younger == nullptr || stored->order > younger->order)) {
      younger = stored;
    }
  }
  if (idle != nullptr) return idle;
  if (younger != nullptr) return younger;
  const bool takes_oldest = oldest != &requester && !oldest->is_pinned &&
                            !oldest->session.has_work() && oldest->state->block_count() > 0;
  return takes_oldest ? oldest : nullptr;
}

}  // namespace selfsame::verifier
