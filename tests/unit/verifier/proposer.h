#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "tests/testing/canonical_loop.h"
#include "verifier/engine/types.h"

namespace selfsame::verifier {

// Keeps what the engine says to a stream.
class RecordingSink final : public StreamSink {
 public:
  void OnVerdict(Verdict verdict) override { verdicts.push_back(std::move(verdict)); }
  void OnSessionError(uint64_t session_id, const absl::Status& status) override {
    errors[session_id] = status;
  }
  void OnInboxRoom() override {}
  void OnStreamEnd(const absl::Status& status) override { end = status; }

  std::vector<Verdict> Take() { return std::exchange(verdicts, {}); }

  std::vector<Verdict> verdicts;
  std::map<uint64_t, absl::Status> errors;
  absl::Status end;
};

struct ProposerOptions {
  int window_size = 16;
  bool has_random_cuts = false;  // windows of 1 to window_size candidates
  int max_inflight = 3;
  int wrong_percent = 5;  // of candidates
  uint64_t seed = 1;
};

// The decoder's side of one session, as simple as it can be: it knows the right answer and proposes
// it with mistakes. Checks every verdict against the protocol and the answer.
class Proposer {
 public:
  // `answer` is what the session must commit.
  Proposer(SessionOpening opening, testing::Answer answer, int32_t vocab_size,
           ProposerOptions options)
      : opening_(std::move(opening)),
        answer_(std::move(answer)),
        vocab_size_(vocab_size),
        options_(options),
        random_(options.seed) {}

  const SessionOpening& opening() const { return opening_; }

  // Takes a verdict and returns the windows to submit now.
  std::vector<Window> OnVerdict(const Verdict& verdict);

  bool is_done() const { return end_ != End::kNone; }
  End end() const { return end_; }
  int rollbacks() const { return rollbacks_; }
  // Of the opening verdict.
  int32_t cached_tokens() const { return cached_tokens_; }
  // What was committed from the opening on, the opening's committed tokens included.
  const testing::Answer& committed() const { return committed_; }

 private:
  struct InFlight {
    uint64_t window_id = 0;
    uint32_t epoch = 0;
    std::vector<int32_t> candidates;
  };

  void Commit(const Verdict& verdict, const std::vector<int32_t>& token_ids);
  int32_t Propose(size_t index);
  std::vector<Window> Submit();
  int32_t prompt_length() const { return static_cast<int32_t>(opening_.prompt_token_ids.size()); }

  const SessionOpening opening_;
  const testing::Answer answer_;
  const int32_t vocab_size_;
  const ProposerOptions options_;
  std::mt19937_64 random_;

  testing::Answer committed_;
  std::vector<InFlight> in_flight_;
  size_t proposed_ = 0;  // output tokens committed or proposed
  uint32_t epoch_ = 0;
  uint64_t next_window_id_ = 1;
  int rollbacks_ = 0;
  int32_t cached_tokens_ = 0;
  End end_ = End::kNone;
};

}  // namespace selfsame::verifier
