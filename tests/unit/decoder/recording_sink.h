#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "decoder/engine/types.h"

namespace selfsame::decoder {

// Keeps everything it gets, and fails the test when the order of events breaks the contract. It
// follows candidates as the comment of Chunk in inference.proto tells a client to.
class RecordingSink final : public GenerationSink {
 public:
  void OnStarted(const StartedEvent& event) override;
  void OnPromptLogprobs(PromptLogprobsEvent event) override;
  void OnChunk(ChunkEvent event) override;
  void OnRetract(const RetractEvent& event) override;
  void OnComplete(const CompleteEvent& event) override;
  void OnError(const absl::Status& status) override;

  // Any thread.
  bool is_done() const;
  void WaitUntilDone();
  void WaitForTokens(size_t count);

  struct Candidate {
    int32_t token_id = 0;
    std::string text;
  };
  // What a client shows.
  std::string shown_text() const;

  // Once it is done.
  std::optional<StartedEvent> started;
  std::vector<ChunkEvent> chunks;  // of tokens that stand
  std::deque<Candidate> candidates;
  int candidate_count = 0;
  int retract_count = 0;
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<TopLogprobs> top_logprobs;
  std::vector<PromptLogprob> prompt_logprobs;
  int prompt_piece_count = 0;
  std::string text;
  std::optional<CompleteEvent> complete;
  absl::Status status;

 private:
  void AddCandidate(const ChunkEvent& event);
  void CommitCandidates(const ChunkEvent& event);
  void End();

  int32_t committed_length_ = -1;  // -1: not known yet
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  size_t token_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace selfsame::decoder
