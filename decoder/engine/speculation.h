#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "decoder/engine/types.h"

namespace selfsame::decoder {

struct SpeculationParams {
  int32_t prompt_length = 0;
  int32_t max_tokens = 0;               // output tokens
  std::vector<int32_t> stop_token_ids;  // sorted
  int32_t vocab_size = 0;
  int32_t max_inflight_windows = 0;
  std::vector<int32_t> resumed_tokens = {};  // committed before; fewer than max_tokens
  int32_t top_logprobs = 0;                  // alternatives for each committed token
  // Alternatives for each prompt token; unset: none wanted.
  std::optional<int32_t> prompt_logprobs = std::nullopt;
};

// What a verdict changed.
struct SpeculationEffect {
  int32_t first_position = 0;                  // of the newly committed tokens
  std::vector<int32_t> tokens;                 // newly committed, in order
  std::vector<float> logprobs;                 // as many
  std::vector<TopLogprobs> top_logprobs;       // as many, when asked for
  std::vector<PromptLogprob> prompt_logprobs;  // with the first opening verdict, when asked for
  // Set when candidates were dropped: state computed for positions from here on is of tokens that
  // do not stand. Always committed length - 1, for the newest committed token is the next row's
  // input.
  std::optional<int32_t> truncate_to;
  int32_t dropped = 0;  // candidates, in flight and unsubmitted
  // Position of the first of them; empty when there is none.
  std::optional<int32_t> first_dropped;
  bool is_rollback = false;  // a candidate was dropped for another token
  End end = End::kNone;
};

struct SpeculationCounters {
  int32_t windows = 0;                 // submitted
  int32_t rollbacks = 0;               // verdicts that dropped a candidate for another token
  int32_t rolled_back_tokens = 0;      // every candidate dropped
  int32_t redecoded_tokens = 0;        // candidates at a position that had one before
  int32_t windows_since_rollback = 0;  // committed whole, in a row
};

// One deterministic request's tokens between proposal and verdict. A pure state machine: no clock,
// no I/O, one thread. Positions are absolute, the prompt's first token is position 0.
//
// The output is a list of tokens: committed ones, then candidates; of the candidates, first those
// in flight, then the unsubmitted.
//
//   prompt | committed        | in flight       | unsubmitted
//          ^ prompt_length    ^ committed_length                ^ length
//
// Invariants, checked after every event:
//   1. committed <= output <= max_tokens.
//   2. Windows in flight are in order of submission; those of a stale epoch come first; those of
//   the
//      current epoch cover the first candidates, without gap or overlap.
//   3. Windows in flight are at most max_inflight_windows, and none without an open session.
//   4. A proposed end is the last candidate.
//   5. After the end there are no candidates and no windows.
class Speculation {
 public:
  // REQUIRES: all counts positive; the sum of prompt_length and max_tokens fits in 31 bits.
  explicit Speculation(SpeculationParams params);

  // Events.

  // A session is being opened with the committed tokens as they are now; no window can be cut
  // before its opening verdict. REQUIRES: no session, not ended.
  void NewSession(uint64_t session_id);

  // The session is gone and no verdict will come: windows in flight are unsubmitted candidates
  // again, all credit is back. REQUIRES: a session.
  void OnSessionLost();

  // A token decoded for position length(). It proposes the end of the answer when it is a stop
  // token or the max_tokens-th, or when the caller says so. REQUIRES: CanAppend().
  void AppendCandidate(int32_t token, bool is_end = false);

  // Submits the next `max_size` unsubmitted candidates, or as many as there are. Nothing without
  // candidates, credit and an opening verdict. REQUIRES: max_size > 0.
  std::optional<Window> CutWindow(int32_t max_size);

  // Applies a verdict of the current session. An error means the verifier broke the protocol and
  // must not be believed any more; nothing has changed then.
  absl::StatusOr<SpeculationEffect> ApplyVerdict(const Verdict& verdict);

  // Queries.

  // What a new session must be asked for: no opening verdict has brought the prompt's logprobs yet.
  std::optional<int32_t> wanted_prompt_logprobs() const {
    return has_prompt_logprobs_ ? std::nullopt : params_.prompt_logprobs;
  }
  int32_t committed_length() const { return params_.prompt_length + committed_count_; }
  int32_t length() const { return params_.prompt_length + output_count(); }
  // Committed tokens, then candidates. Position prompt_length + i is output()[i]. Valid until the
  // next event.
  std::span<const int32_t> output() const { return output_; }
  std::span<const int32_t> committed_tokens() const {
    return std::span(output_).first(static_cast<size_t>(committed_count_));
  }
  int32_t candidate_count() const { return output_count() - committed_count_; }
  int32_t unsubmitted_count() const { return candidate_count() - submitted_count_; }
  int32_t windows_in_flight() const { return static_cast<int32_t>(in_flight_.size()); }
  int32_t credit() const { return params_.max_inflight_windows - windows_in_flight(); }
  uint64_t session_id() const { return session_id_; }  // 0: none
  uint32_t epoch() const { return epoch_; }
  bool is_open() const { return is_open_; }  // the opening verdict has come
  bool has_proposed_end() const { return has_proposed_end_; }
  bool has_ended() const { return has_ended_; }
  bool CanAppend() const { return !has_ended_ && !has_proposed_end_; }
  // Whether decoding on is of use: it stops where the answer may end, and when the unsubmitted
  // candidates fill every window of `window_size` that could be cut, or one when there is no
  // credit.
  bool WantsCandidate(int32_t window_size) const;
  const SpeculationCounters& counters() const { return counters_; }

 private:
  struct InFlight {
    uint64_t window_id = 0;
    uint32_t epoch = 0;
    int32_t first_position = 0;
    int32_t size = 0;
  };

  int32_t output_count() const { return static_cast<int32_t>(output_.size()); }
  bool IsStopToken(int32_t token) const;

  // Each checks one kind of verdict against the state and changes nothing.
  absl::Status CheckVerdict(const Verdict& verdict) const;
  absl::Status CheckOpening(const Verdict& verdict) const;
  absl::Status CheckDiscarded(const Verdict& verdict) const;
  absl::Status CheckDecision(const Verdict& verdict, const InFlight& window) const;
  absl::Status CheckCommitted(const Verdict& verdict) const;
  absl::Status CheckAlternatives(const Verdict& verdict) const;
  absl::Status CheckPromptLogprobs(const Verdict& verdict) const;
  bool IsTop(const TopLogprobs& top, int32_t count) const;
  std::vector<int32_t> CommittedBy(const Verdict& verdict) const;

  void Commit(const Verdict& verdict, SpeculationEffect& effect);
  void CheckInvariants() const;

  SpeculationParams params_;
  std::vector<int32_t> output_;
  int32_t committed_count_ = 0;
  int32_t submitted_count_ = 0;  // candidates in windows of the current epoch
  bool has_proposed_end_ = false;
  bool has_ended_ = false;
  bool has_prompt_logprobs_ = false;

  uint64_t session_id_ = 0;
  bool is_open_ = false;
  uint32_t epoch_ = 0;
  uint64_t next_window_id_ = 1;
  std::deque<InFlight> in_flight_;

  int32_t decoded_length_ = 0;  // positions below have had a candidate
  SpeculationCounters counters_;
};

}  // namespace selfsame::decoder
