#include "decoder/engine/speculation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"

namespace selfsame::decoder {
namespace {

absl::Status Broken(const Verdict& verdict, const std::string& what) {
  return InternalError(absl::StrCat("protocol broken by the verifier: session ", verdict.session_id,
                                    ", window ", verdict.window_id, ": ", what));
}

}  // namespace

Speculation::Speculation(SpeculationParams params)
    : params_(std::move(params)),
      output_(std::move(params_.resumed_tokens)),
      committed_count_(output_count()),
      decoded_length_(length()) {
  SELFSAME_CHECK(params_.prompt_length > 0 && output_count() < params_.max_tokens);
  SELFSAME_CHECK(params_.vocab_size > 0 && params_.max_inflight_windows > 0);
}

void Speculation::NewSession(uint64_t session_id) {
  SELFSAME_CHECK(session_id_ == 0 && session_id != 0 && !has_ended_);
  session_id_ = session_id;
  CheckInvariants();
}

void Speculation::OnSessionLost() {
  SELFSAME_CHECK(session_id_ != 0);
  session_id_ = 0;
  is_open_ = false;
  epoch_ = 0;
  next_window_id_ = 1;
  in_flight_.clear();
  submitted_count_ = 0;
  CheckInvariants();
}

void Speculation::AppendCandidate(int32_t token, bool is_end) {
  SELFSAME_CHECK(CanAppend());
  if (length() < decoded_length_) {
    ++counters_.redecoded_tokens;
  } else {
    decoded_length_ = length() + 1;
  }
  output_.push_back(token);
  has_proposed_end_ = is_end || IsStopToken(token) || output_count() == params_.max_tokens;
  CheckInvariants();
}

std::optional<Window> Speculation::CutWindow(int32_t max_size) {
  SELFSAME_CHECK(max_size > 0);
  const int32_t size = std::min(max_size, unsubmitted_count());
  if (!is_open_ || size == 0 || credit() == 0) return std::nullopt;
  Window window;
  window.session_id = session_id_;
  window.epoch = epoch_;
  window.window_id = next_window_id_++;
  window.first_position = committed_length() + submitted_count_;
  const auto first = output_.begin() + committed_count_ + submitted_count_;
  window.candidate_ids.assign(first, first + size);
  in_flight_.push_back({window.window_id, epoch_, window.first_position, size});
  submitted_count_ += size;
  ++counters_.windows;
  CheckInvariants();
  return window;
}

absl::StatusOr<SpeculationEffect> Speculation::ApplyVerdict(const Verdict& verdict) {
  RETURN_IF_ERROR(CheckVerdict(verdict));
  SpeculationEffect effect;
  effect.first_position = committed_length();
  const bool is_opening = verdict.window_id == 0;
  if (is_opening) {
    is_open_ = true;
    effect.prompt_logprobs = verdict.prompt_logprobs;
    has_prompt_logprobs_ = true;
  } else {
    in_flight_.pop_front();
  }
  if (verdict.outcome != Outcome::kDiscarded) {
    epoch_ = verdict.epoch;
    Commit(verdict, effect);
    if (!is_opening && !effect.truncate_to) ++counters_.windows_since_rollback;
  }
  CheckInvariants();
  return effect;
}

void Speculation::Commit(const Verdict& verdict, SpeculationEffect& effect) {
  effect.tokens = CommittedBy(verdict);
  effect.logprobs = verdict.logprobs;
  effect.top_logprobs = verdict.top_logprobs;
  effect.end = verdict.end;
  const auto candidates = output_.begin() + committed_count_;
  const auto [differs, first_dropped] =
      std::mismatch(effect.tokens.begin(), effect.tokens.end(), candidates, output_.end());
  const bool is_mismatch = differs != effect.tokens.end() && first_dropped != output_.end();
  const bool drops = is_mismatch || verdict.end != End::kNone;
  if (drops) {
    effect.dropped = static_cast<int32_t>(output_.end() - first_dropped);
    if (effect.dropped > 0) effect.first_dropped = length() - effect.dropped;
    output_.erase(first_dropped, output_.end());
  }
  const auto count = static_cast<int32_t>(effect.tokens.size());
  output_.resize(static_cast<size_t>(std::max(output_count(), committed_count_ + count)));
  std::copy(effect.tokens.begin(), effect.tokens.end(), output_.begin() + committed_count_);
  committed_count_ += count;
  submitted_count_ = drops ? 0 : std::max(0, submitted_count_ - count);
  if (candidate_count() == 0) has_proposed_end_ = false;

  counters_.rolled_back_tokens += effect.dropped;
  effect.is_rollback = is_mismatch;
  if (is_mismatch) {
    ++counters_.rollbacks;
    counters_.windows_since_rollback = 0;
  }
  if (effect.dropped > 0) effect.truncate_to = committed_length() - 1;
  if (verdict.end != End::kNone) {
    has_ended_ = true;
    in_flight_.clear();
  }
}

bool Speculation::WantsCandidate(int32_t window_size) const {
  return CanAppend() && unsubmitted_count() < window_size * std::max(1, credit());
}

bool Speculation::IsStopToken(int32_t token) const {
  return std::binary_search(params_.stop_token_ids.begin(), params_.stop_token_ids.end(), token);
}

absl::Status Speculation::CheckVerdict(const Verdict& verdict) const {
  if (session_id_ == 0 || verdict.session_id != session_id_ || has_ended_) {
    return Broken(verdict, "the session is not open");
  }
  if (verdict.window_id == 0) return CheckOpening(verdict);
  if (!verdict.prompt_logprobs.empty()) return Broken(verdict, "prompt logprobs of a window");
  if (!is_open_) return Broken(verdict, "a window's verdict came before the opening one");
  if (in_flight_.empty() || in_flight_.front().window_id != verdict.window_id) {
    return Broken(verdict, "not the oldest window in flight");
  }
  const InFlight& window = in_flight_.front();
  return window.epoch == epoch_ ? CheckDecision(verdict, window) : CheckDiscarded(verdict);
}

absl::Status Speculation::CheckOpening(const Verdict& verdict) const {
  if (is_open_) return Broken(verdict, "a second opening verdict");
  if (verdict.outcome != Outcome::kCommit) return Broken(verdict, "an opening must commit");
  if (verdict.epoch != epoch_) return Broken(verdict, "wrong epoch");
  if (!verdict.canonical_token) return Broken(verdict, "no canonical token");
  if (verdict.committed_length != committed_length() + 1) {
    return Broken(verdict, "an opening commits one token");
  }
  // The row that gives the opening verdict is always computed.
  if (verdict.cached_tokens < 0 || verdict.cached_tokens >= committed_length()) {
    return Broken(verdict, absl::StrCat(verdict.cached_tokens, " cached tokens of a session of ",
                                        committed_length()));
  }
  RETURN_IF_ERROR(CheckPromptLogprobs(verdict));
  return CheckCommitted(verdict);
}

absl::Status Speculation::CheckDiscarded(const Verdict& verdict) const {
  if (verdict.outcome != Outcome::kDiscarded) {
    return Broken(verdict, "a decision on a window of a stale epoch");
  }
  if (verdict.epoch != epoch_) return Broken(verdict, "wrong epoch");
  if (verdict.canonical_token || !verdict.logprobs.empty() || !verdict.top_logprobs.empty() ||
      verdict.end != End::kNone) {
    return Broken(verdict, "a discarded window commits nothing");
  }
  return absl::OkStatus();
}

absl::Status Speculation::CheckDecision(const Verdict& verdict, const InFlight& window) const {
  const int32_t window_end = window.first_position + window.size;
  if (verdict.committed_length <= window.first_position || verdict.committed_length > window_end) {
    return Broken(verdict, absl::StrCat("committed length ", verdict.committed_length,
                                        " is outside the window (", window.first_position, ", ",
                                        window_end, "]"));
  }
  switch (verdict.outcome) {
    case Outcome::kDiscarded:
      return Broken(verdict, "a window of the current epoch was discarded");
    case Outcome::kCommit:
      if (verdict.epoch != epoch_) return Broken(verdict, "wrong epoch");
      if (verdict.canonical_token) return Broken(verdict, "a commit replaces no token");
      if (verdict.end == End::kNone && verdict.committed_length != window_end) {
        return Broken(verdict, "a commit without an end must commit the whole window");
      }
      break;
    case Outcome::kRollback: {
      if (verdict.epoch != epoch_ + 1) return Broken(verdict, "wrong epoch");
      if (!verdict.canonical_token) return Broken(verdict, "no canonical token");
      const int32_t mismatch = verdict.committed_length - 1 - params_.prompt_length;
      if (output_[static_cast<size_t>(mismatch)] == *verdict.canonical_token) {
        return Broken(verdict, "the canonical token is the candidate");
      }
      break;
    }
  }
  return CheckCommitted(verdict);
}

// Ends are the verifier's to decide, but by rules both sides know: an answer that runs past one, or
// stops short of one, is not the answer.
absl::Status Speculation::CheckCommitted(const Verdict& verdict) const {
  const auto& canonical = verdict.canonical_token;
  if (canonical && (*canonical < 0 || *canonical >= params_.vocab_size)) {
    return Broken(verdict, absl::StrCat("token ", *canonical, " is outside the vocabulary"));
  }
  const std::vector<int32_t> tokens = CommittedBy(verdict);
  if (verdict.logprobs.size() != tokens.size()) {
    return Broken(verdict, absl::StrCat(verdict.logprobs.size(), " logprobs for ", tokens.size(),
                                        " committed tokens"));
  }
  if (std::any_of(verdict.logprobs.begin(), verdict.logprobs.end(),
                  [](float logprob) { return std::isnan(logprob); })) {
    return Broken(verdict, "a logprob is not a number");
  }
  RETURN_IF_ERROR(CheckAlternatives(verdict));
  const bool passes_end = std::any_of(tokens.begin(), tokens.end() - 1,
                                      [this](int32_t token) { return IsStopToken(token); });
  if (passes_end) return Broken(verdict, "committed past a stop token");
  const bool is_stop = IsStopToken(tokens.back());
  const bool is_full = verdict.committed_length == params_.prompt_length + params_.max_tokens;
  switch (verdict.end) {
    case End::kNone:
      if (is_stop || is_full) return Broken(verdict, "no end at the end of the answer");
      break;
    case End::kStopToken:
      if (!is_stop) return Broken(verdict, "no stop token at the end");
      break;
    case End::kMaxTokens:
    case End::kContextLimit:
      if (!is_full) return Broken(verdict, "ended before the limit");
      break;
  }
  return absl::OkStatus();
}

bool Speculation::IsTop(const TopLogprobs& top, int32_t count) const {
  return static_cast<int32_t>(top.size()) == std::min(count, params_.vocab_size) &&
         std::all_of(top.begin(), top.end(), [this](const TokenLogprob& token) {
           return token.token_id >= 0 && token.token_id < params_.vocab_size &&
                  !std::isnan(token.logprob);
         });
}

absl::Status Speculation::CheckAlternatives(const Verdict& verdict) const {
  const size_t count = params_.top_logprobs > 0 ? verdict.logprobs.size() : 0;
  const auto is_sound = [this](const TopLogprobs& top) { return IsTop(top, params_.top_logprobs); };
  if (verdict.top_logprobs.size() != count ||
      !std::all_of(verdict.top_logprobs.begin(), verdict.top_logprobs.end(), is_sound)) {
    return Broken(verdict, "not the top logprobs that were asked for");
  }
  return absl::OkStatus();
}

absl::Status Speculation::CheckPromptLogprobs(const Verdict& verdict) const {
  const std::optional<int32_t> top_count = wanted_prompt_logprobs();
  const auto count = static_cast<size_t>(top_count ? params_.prompt_length - 1 : 0);
  const auto is_sound = [&](const PromptLogprob& entry) {
    return !std::isnan(entry.logprob) && IsTop(entry.top, *top_count);
  };
  if (verdict.prompt_logprobs.size() != count ||
      !std::all_of(verdict.prompt_logprobs.begin(), verdict.prompt_logprobs.end(), is_sound)) {
    return Broken(verdict, "not the prompt logprobs that were asked for");
  }
  return absl::OkStatus();
}

// REQUIRES: committed_length is past the current one and covers candidates only, but for a
// canonical token in the last place.
std::vector<int32_t> Speculation::CommittedBy(const Verdict& verdict) const {
  std::vector<int32_t> tokens(static_cast<size_t>(verdict.committed_length - committed_length()));
  const size_t from_candidates = tokens.size() - (verdict.canonical_token ? 1 : 0);
  std::copy_n(output_.begin() + committed_count_, from_candidates, tokens.begin());
  if (verdict.canonical_token) tokens.back() = *verdict.canonical_token;
  return tokens;
}

void Speculation::CheckInvariants() const {
  SELFSAME_CHECK(committed_count_ <= output_count() && output_count() <= params_.max_tokens);  // 1
  int32_t covered = committed_length();
  bool is_current = false;
  for (const InFlight& window : in_flight_) {  // 2
    SELFSAME_CHECK(window.epoch == epoch_ || !is_current);
    is_current = window.epoch == epoch_;
    if (!is_current) continue;
    SELFSAME_CHECK(window.first_position == covered);
    covered += window.size;
  }
  SELFSAME_CHECK(covered == committed_length() + submitted_count_);
  SELFSAME_CHECK(submitted_count_ <= candidate_count());
  SELFSAME_CHECK(credit() >= 0 && (in_flight_.empty() || is_open_));              // 3
  SELFSAME_CHECK(!has_proposed_end_ || candidate_count() > 0);                    // 4
  SELFSAME_CHECK(!has_ended_ || (candidate_count() == 0 && in_flight_.empty()));  // 5
}

}  // namespace selfsame::decoder
