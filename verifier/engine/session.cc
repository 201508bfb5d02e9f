#include "verifier/engine/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"

namespace selfsame::verifier {

Session::Session(SessionOpening opening, int32_t context_limit, SteadyTime now)
    : id_(opening.session_id),
      rules_{.prompt_length = static_cast<int32_t>(opening.prompt_token_ids.size()),
             .max_tokens = opening.max_tokens,
             .context_limit = context_limit,
             .stop_token_ids = std::move(opening.stop_token_ids)},
      sampling_{.temperature = opening.temperature,
                .top_k = opening.top_k,
                .top_p = opening.top_p,
                .min_p = opening.min_p,
                .seed = opening.seed,
                .choice_index = opening.choice_index,
                .top_count = opening.top_logprobs},
      prompt_logprobs_wanted_(opening.prompt_logprobs.has_value()),
      prompt_top_count_(opening.prompt_logprobs.value_or(0)),
      opened_at_(now),
      tokens_(std::move(opening.prompt_token_ids)) {
  tokens_.insert(tokens_.end(), opening.committed_token_ids.begin(),
                 opening.committed_token_ids.end());
  pending_length_ = committed_length();
  if (!opening.logit_rules.is_neutral()) {
    const std::span<const int32_t> prompt(tokens_.data(),
                                          static_cast<size_t>(rules_.prompt_length));
    editor_.emplace(opening.logit_rules, prompt, rules_.stop_token_ids);
  }
}

absl::StatusOr<std::optional<Verdict>> Session::AddWindow(Window window, SteadyTime now) {
  if (!is_open_) {
    return InvalidArgumentError("window_id", "a window came before the session's opening verdict");
  }
  if (window.window_id <= newest_window_id_) {
    return InvalidArgumentError("window_id", absl::StrCat("must rise; ", window.window_id,
                                                          " came after ", newest_window_id_));
  }
  // Epochs that fall would let a stale window's verdict overtake one that is owed.
  if (window.epoch > epoch_ || window.epoch < newest_window_epoch_) {
    return InvalidArgumentError(
        "epoch", absl::StrCat("is ", window.epoch, "; the session's epoch is ", epoch_,
                              " and its newest window had ", newest_window_epoch_));
  }
  newest_window_id_ = window.window_id;
  newest_window_epoch_ = window.epoch;
  if (window.epoch < epoch_ || has_ended()) {
    return MakeVerdict(window.window_id, Outcome::kDiscarded);
  }
  if (window.first_position != pending_length_) {
    return InvalidArgumentError(
        "first_position",
        absl::StrCat("is ", window.first_position, "; the session's next candidate has position ",
                     pending_length_));
  }
  if (pending_.size() >= kMaxPendingWindows) {
    return ResourceExhaustedError(
        absl::StrCat("more than ", kMaxPendingWindows, " windows of one session wait for verdicts"),
        kSessionRetryMs);
  }
  pending_length_ += static_cast<int32_t>(window.candidate_ids.size());
  pending_.push_back({std::move(window), now});
  return std::optional<Verdict>();
}

SampleRow Session::PromptRow(int32_t position) const {
  return {.given_token = tokens_[static_cast<size_t>(position) + 1],
          .top_count = prompt_top_count_};
}

void Session::AddPromptLogprob(int32_t position, const SampledToken& given) {
  SELFSAME_CHECK(position == static_cast<int32_t>(prompt_logprobs_.size()));
  prompt_logprobs_.push_back({given.logprob, given.top});
}

Verdict Session::Open(const SampledToken& canonical) {
  SELFSAME_CHECK(!is_open_ && !needs_all_prompt_rows());
  is_open_ = true;
  tokens_.push_back(canonical.token_id);
  pending_length_ = committed_length();
  end_ = rules_.EndAt(canonical.token_id, committed_length());
  Verdict verdict = MakeVerdict(0, Outcome::kCommit);
  verdict.canonical_token = canonical.token_id;
  verdict.logprobs = {canonical.logprob};
  AddTopLogprobs({&canonical, 1}, verdict);
  verdict.prompt_logprobs = std::move(prompt_logprobs_);
  // What was given is not asked for again, even if the KV is computed anew.
  prompt_logprobs_.clear();
  prompt_logprobs_wanted_ = false;
  return verdict;
}

std::vector<Verdict> Session::Decide(size_t window_count, std::span<const SampledToken> canonical,
                                     const WindowPolicy& policy) {
  SELFSAME_CHECK(is_open_ && window_count <= pending_.size());
  std::vector<Verdict> verdicts;
  for (size_t i = 0; i < window_count; ++i) {
    const auto rows = static_cast<size_t>(window_rows(0));
    SELFSAME_CHECK(rows <= canonical.size());
    const Window& window = pending_.front().window;
    const std::span<const SampledToken> results = canonical.first(rows);
    WindowDecision decision = policy(rules_, committed_length(), window.candidate_ids, results);
    SELFSAME_CHECK(!decision.committed.empty());
    canonical = canonical.subspan(rows);
    tokens_.insert(tokens_.end(), decision.committed.begin(), decision.committed.end());
    end_ = decision.end;
    if (decision.outcome == Outcome::kRollback) {
      ++epoch_;
      // The newest committed token took the place of another.
      if (editor_) editor_->Truncate(committed_length() - 1 - rules_.prompt_length);
    }
    Verdict verdict = MakeVerdict(window.window_id, decision.outcome);
    if (decision.outcome == Outcome::kRollback) verdict.canonical_token = tokens_.back();
    verdict.logprobs = std::move(decision.logprobs);
    AddTopLogprobs(results.first(verdict.logprobs.size()), verdict);
    verdicts.push_back(std::move(verdict));
    pending_.pop_front();
    if (decision.outcome == Outcome::kRollback || has_ended()) {
      DiscardPending(verdicts);
      break;
    }
  }
  return verdicts;
}

void Session::AddTopLogprobs(std::span<const SampledToken> committed, Verdict& verdict) const {
  if (sampling_.top_count == 0) return;
  for (const SampledToken& token : committed) verdict.top_logprobs.push_back(token.top);
}

void Session::DiscardPending(std::vector<Verdict>& verdicts) {
  for (const PendingWindow& pending : pending_) {
    verdicts.push_back(MakeVerdict(pending.window.window_id, Outcome::kDiscarded));
  }
  pending_.clear();
  pending_length_ = committed_length();
}

Verdict Session::MakeVerdict(uint64_t window_id, Outcome outcome) const {
  return {.session_id = id_,
          .window_id = window_id,
          .outcome = outcome,
          .epoch = epoch_,
          .committed_length = committed_length(),
          .canonical_token = std::nullopt,
          .logprobs = {},
          .end = outcome == Outcome::kDiscarded ? End::kNone : end_,
          .cached_tokens = 0,
          .top_logprobs = {},
          .prompt_logprobs = {},
          .verifier_time = std::nullopt};
}

SteadyTime Session::waiting_since() const {
  SELFSAME_CHECK(has_work());
  return is_open_ ? pending_.front().arrived : opened_at_;
}

int32_t Session::window_rows(size_t index) const {
  const Window& window = pending_[index].window;
  const int32_t room = std::max(0, rules_.longest_length() - window.first_position);
  return std::min(room, static_cast<int32_t>(window.candidate_ids.size()));
}

int32_t Session::TokenAt(int32_t position) const {
  SELFSAME_CHECK(position >= 0 && position < pending_length_);
  if (position < committed_length()) return tokens_[static_cast<size_t>(position)];
  for (const PendingWindow& pending : pending_) {
    const auto index = static_cast<size_t>(position - pending.window.first_position);
    if (index < pending.window.candidate_ids.size()) return pending.window.candidate_ids[index];
  }
  SELFSAME_CHECK(false);
  return 0;
}

SampleRow Session::SamplingAfter(int32_t position) {
  SampleRow row = sampling_;
  row.position = position + 1;
  if (editor_) {
    const int32_t output_count = position + 1 - rules_.prompt_length;
    editor_->Truncate(output_count);
    while (editor_->output_count() < output_count) {
      editor_->Append(TokenAt(rules_.prompt_length + editor_->output_count()));
    }
    row.edits = editor_->edits();
  }
  return row;
}

}  // namespace selfsame::verifier
