#include "decoder/engine/window_policy.h"

#include <algorithm>

#include "common/check.h"

namespace selfsame::decoder {

AdaptiveWindowPolicy::AdaptiveWindowPolicy(const WindowOptions& options) : options_(options) {
  SELFSAME_CHECK(options.window_size > 0 && options.first_window_size > 0);
}

int32_t AdaptiveWindowPolicy::FullSize(int32_t windows_since_rollback) const {
  int64_t size = options_.first_window_size;
  for (int32_t i = 0; i < windows_since_rollback && size < options_.window_size; ++i) size *= 2;
  return static_cast<int32_t>(std::min<int64_t>(size, options_.window_size));
}

int32_t AdaptiveWindowPolicy::Cut(const WindowQuery& query) {
  const int32_t full_size = FullSize(query.windows_since_rollback);
  // What is decoded after a mismatch is lost, so a doubt is settled early; but many doubts must not
  // use up the credit, without which decoding pauses.
  const bool has_urgent_doubt = query.has_doubt && query.credit > 1;
  const bool is_due =
      query.unsubmitted >= full_size || has_urgent_doubt || query.has_proposed_end ||
      query.is_paused || query.oldest_age >= options_.max_age ||
      (query.is_verifier_idle && query.unsubmitted >= options_.min_idle_window_size);
  return is_due ? std::min(query.unsubmitted, options_.window_size) : 0;
}

}  // namespace selfsame::decoder
