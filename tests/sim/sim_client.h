#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "decoder/engine/types.h"
#include "tests/sim/sim_decoder.h"
#include "tests/sim/sim_model.h"
#include "tests/sim/world.h"

namespace selfsame::sim {

// The answer by definition: one token after another from the arithmetic, cut at its end by a plain
// search for the stop strings, with none of the product's code in between.
struct CanonicalAnswer {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<TopLogprobs> top_logprobs;
  std::string text;
};
CanonicalAnswer AnswerOf(const decoder::GenerationRequest& request, uint64_t weights);

// The text that may be shown of these output tokens, by definition: what ends the answer, or may be
// the beginning of a stop string, is not in it.
std::string TextToShow(const decoder::GenerationRequest& request,
                       const std::vector<int32_t>& token_ids);

// Errors a request may end with, given what was done to it.
struct AllowedErrors {
  bool cancelled = false;
  bool unavailable = false;  // its decoder was restarted, or it needs a verifier
  bool deadline = false;
  bool resource_exhausted = false;   // a queue or all verifiers are full
  bool failed_precondition = false;  // it expects a fingerprint that nobody has
  bool internal = false;             // its verifier failed sessions for no reason
};

// One request: its sink, and the checks of what it is given. A deterministic one must get a prefix
// of its canonical answer at every moment, an ordinary one what the fast path proposed.
// Candidates are what the fast path proposed, and are retracted before another token is committed.
class SimClient final : public decoder::GenerationSink {
 public:
  SimClient(World& world, SimDecoder& decoder, uint64_t id, decoder::GenerationRequest request);

  void Submit(std::shared_ptr<SimClient> self);
  void Cancel();
  // REQUIRES: not submitted yet.
  void SetDeadline(SteadyTime deadline);

  void OnStarted(const decoder::StartedEvent& event) override;
  void OnPromptLogprobs(decoder::PromptLogprobsEvent event) override;
  void OnChunk(decoder::ChunkEvent event) override;
  void OnRetract(const decoder::RetractEvent& event) override;
  void OnComplete(const decoder::CompleteEvent& event) override;
  void OnError(const absl::Status& status) override;

  bool has_ended() const { return has_ended_; }
  bool has_completed() const { return has_completed_; }
  uint64_t id() const { return id_; }
  const decoder::GenerationRequest& request() const { return request_; }
  const decoder::CompleteEvent& complete() const { return complete_; }
  int64_t candidate_count() const { return candidate_count_; }
  int64_t retract_count() const { return retract_count_; }

  // The request that goes on from the tokens that came. REQUIRES: OnStarted was called.
  decoder::GenerationRequest Continuation() const;

  AllowedErrors allowed;
  // Called when the stream broke (UNAVAILABLE) after it had started. May be null.
  std::function<void(const SimClient&)> on_broken;

 private:
  void CheckPromptLogprobs();
  struct Candidate {
    int32_t token_id = 0;
    std::string text;
  };
  void AddCandidate(const decoder::ChunkEvent& event);
  void CommitCandidates(const decoder::ChunkEvent& event);
  // What is shown is what may be shown of the tokens shown.
  void CheckShown();
  void CheckDeterministic(size_t first, const decoder::ChunkEvent& event);
  void CheckOrdinary(size_t first);
  void CheckCached(int32_t token_count);
  bool IsAllowed(const absl::Status& status) const;
  void End();
  void Fail(const std::string& what);

  World& world_;
  SimDecoder& decoder_;
  const uint64_t id_;
  decoder::GenerationRequest request_;
  CanonicalAnswer expected_;
  std::string fingerprint_;
  uint64_t weights_ = 0;  // of the verifiers; the fast path has those of 0
  std::vector<PromptLogprob> prompt_logprobs_;
  bool has_chunk_ = false;          // a committed one has come
  std::vector<int32_t> token_ids_;  // resumed ones included
  std::string text_;                // likewise
  std::deque<Candidate> candidates_;
  int64_t candidate_count_ = 0;
  int64_t retract_count_ = 0;
  bool has_started_ = false;
  bool has_ended_ = false;
  bool has_completed_ = false;
  decoder::CompleteEvent complete_;
};

}  // namespace selfsame::sim
