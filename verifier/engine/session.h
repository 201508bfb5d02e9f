#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sampling/logit_editor.h"
#include "kernels/ops.h"
#include "verifier/engine/types.h"
#include "verifier/engine/verdict.h"

namespace selfsame::verifier {

// One session's protocol state: what is committed, which windows wait, the epoch. Knows nothing of
// KV, passes or other sessions; the time is a value passed in.
//
// Invariants: the pending windows are contiguous, start at the committed length and carry the
// current epoch; there are none before the opening verdict or after an end.
class Session {
 public:
  // REQUIRES: ValidateOpening is OK for `opening`.
  Session(SessionOpening opening, int32_t context_limit, SteadyTime now);

  // Takes in a window for which ValidateWindow is OK. Nothing: it waits for its verdict. A verdict:
  // it was discarded. An error ends the session.
  absl::StatusOr<std::optional<Verdict>> AddWindow(Window window, SteadyTime now);

  // Prompt logprobs: the row at `position` has to say what the prompt's next token is worth, as
  // PromptRow asks; then AddPromptLogprob takes the result. In order of position, each once.
  bool NeedsPromptLogprob(int32_t position) const {
    return prompt_logprobs_wanted_ && position + 1 < rules_.prompt_length &&
           position >= static_cast<int32_t>(prompt_logprobs_.size());
  }
  SampleRow PromptRow(int32_t position) const;
  void AddPromptLogprob(int32_t position, const SampledToken& given);
  // Prompt logprobs are still missing: the rows that give them must run, whatever KV there is to
  // be had without.
  bool needs_all_prompt_rows() const { return NeedsPromptLogprob(rules_.prompt_length - 2); }

  // The opening verdict, from the row of the newest committed token. REQUIRES: !is_open(); no
  // prompt logprob is missing.
  Verdict Open(const SampledToken& canonical);

  // Decides the first `window_count` pending windows. `canonical` has the results of their rows, in
  // order. Returns their verdicts, and those of all other pending windows when a rollback or an end
  // makes them void.
  std::vector<Verdict> Decide(size_t window_count, std::span<const SampledToken> canonical,
                              const WindowPolicy& policy);

  // The opening verdict has been given.
  bool is_open() const { return is_open_; }
  bool has_ended() const { return end_ != End::kNone; }
  // A verdict is owed.
  bool has_work() const { return !is_open_ || !pending_.empty(); }
  // Since when the oldest verdict has been owed. REQUIRES: has_work().
  SteadyTime waiting_since() const;

  uint64_t id() const { return id_; }
  uint32_t epoch() const { return epoch_; }
  int32_t committed_length() const { return static_cast<int32_t>(tokens_.size()); }
  size_t pending_count() const { return pending_.size(); }
  // Rows of pending window `index`: one a candidate, fewer where an end must come before.
  int32_t window_rows(size_t index) const;
  SteadyTime window_arrival(size_t index) const { return pending_[index].arrived; }
  // The token at a position below the committed length plus all pending candidates.
  int32_t TokenAt(int32_t position) const;
  // How the token after `position` is chosen, given all tokens up to there. Its edits are valid
  // until the next call of this or of Decide. Cheap when the positions asked for rise one by one.
  SampleRow SamplingAfter(int32_t position);

 private:
  struct PendingWindow {
    Window window;
    SteadyTime arrived;
  };

  Verdict MakeVerdict(uint64_t window_id, Outcome outcome) const;
  void DiscardPending(std::vector<Verdict>& verdicts);
  // `committed` are the results of the verdict's newly committed tokens.
  void AddTopLogprobs(std::span<const SampledToken> committed, Verdict& verdict) const;

  const uint64_t id_;
  EndRules rules_;
  SampleRow sampling_;
  // Of a session that edits logits: a prefix of committed output and pending candidates.
  std::optional<LogitEditor> editor_;
  bool prompt_logprobs_wanted_ = false;
  int32_t prompt_top_count_ = 0;
  const SteadyTime opened_at_;
  std::vector<int32_t> tokens_;  // committed
  std::deque<PendingWindow> pending_;
  int32_t pending_length_ = 0;  // committed length and all pending candidates
  uint32_t epoch_ = 0;
  uint32_t newest_window_epoch_ = 0;
  uint64_t newest_window_id_ = 0;
  std::vector<PromptLogprob> prompt_logprobs_;  // of positions 1, 2, ..; until they are given
  bool is_open_ = false;
  End end_ = End::kNone;
};

}  // namespace selfsame::verifier
