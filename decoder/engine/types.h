#pragma once

// What crosses the border between the decoder's engine and its surroundings: requests and their
// events (decoder/service), windows and verdicts (decoder/verifier_client). Plain data; no gRPC.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/sampling/logit_rules.h"
#include "common/token_logprob.h"

namespace selfsame::decoder {

// The choices of one call have one fingerprint: that of the verifier which the first of them to be
// verified finds. The engine thread's.
struct ChoiceGroup {
  std::string fingerprint;  // empty: not known yet
};

// One validated generation with every default resolved.
struct GenerationRequest {
  std::string request_id;
  std::vector<int32_t> prompt_token_ids;  // not empty, shorter than the context limit
  float temperature = 1.0f;               // 0: greedy
  int32_t top_k = 0;                      // 0: off
  float top_p = 1.0f;                     // 1: off
  float min_p = 0.0f;                     // 0: off
  LogitRules logit_rules = {};
  uint64_t seed = 0;
  int32_t max_tokens = 0;  // prompt + max_tokens is at most the context limit
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_token_ids;  // end-of-sequence ids included unless ignored; sorted
  bool is_deterministic = false;
  bool logprobs = false;
  int32_t priority = 0;                    // lower is sooner
  int32_t choice_index = 0;                // of n choices of one call; part of the noise
  int32_t top_logprobs = 0;                // alternatives for each output token
  std::optional<int32_t> prompt_logprobs;  // for each prompt token; unset: none wanted
  // What the choices of one call share; null where there is one choice.
  std::shared_ptr<ChoiceGroup> group;
  std::optional<std::string> expected_fingerprint;
  bool stream_candidates = false;  // deterministic requests only
  // Output tokens the client has from an earlier stream: committed, fewer than max_tokens. They are
  // output tokens in every respect but that they are not sent.
  std::vector<int32_t> resume_token_ids;
  std::optional<SteadyTime> deadline;
  std::optional<SteadyTime> arrived_at;  // unset: when the engine takes it in
};

enum class FinishReason { kStop, kLength };

struct StartedEvent {
  std::string fingerprint;  // empty for an ordinary request
};

// Tokens that stand, or one candidate; see Chunk in inference.proto.
struct ChunkEvent {
  int32_t first_position = 0;
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;  // empty unless asked for
  std::string text;
  bool is_candidate = false;
  std::vector<TopLogprobs> top_logprobs{};  // empty unless asked for
};

// The candidates at positions from `length` on are dropped.
struct RetractEvent {
  int32_t length = 0;
};

// Logprobs of the prompt's tokens from `first_position` on.
struct PromptLogprobsEvent {
  int32_t first_position = 0;
  std::vector<PromptLogprob> entries;
};

struct CompleteEvent {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token_id;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  int32_t windows = 0;
  int32_t rollbacks = 0;
  int32_t rolled_back_tokens = 0;
  int32_t redecoded_tokens = 0;
  int32_t cached_prompt_tokens = 0;
  int32_t verifier_cached_prompt_tokens = 0;
  std::string fingerprint;
};

// Receives one request's events, in order, ending with exactly one OnComplete or OnError. Called on
// the engine thread: must not block, and must not call back into the engine.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void OnStarted(const StartedEvent& event) = 0;
  // In pieces, from position 1 on without a gap, all before the first committed
  // chunk. Only when asked for.
  virtual void OnPromptLogprobs(PromptLogprobsEvent event) = 0;
  virtual void OnChunk(ChunkEvent event) = 0;
  // Comes only to a request that asked for candidates.
  virtual void OnRetract(const RetractEvent&) {}
  virtual void OnComplete(const CompleteEvent& event) = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

// Opens a session: prefill of prompt and committed tokens on the verifier.
struct SessionOpening {
  uint64_t session_id = 0;  // never used again; ids rise
  std::vector<int32_t> prompt_token_ids;
  std::vector<int32_t> committed_token_ids;
  float temperature = 0.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  LogitRules logit_rules = {};
  uint64_t seed = 0;
  int32_t choice_index = 0;
  int32_t max_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  std::optional<std::string> expected_fingerprint;
  int32_t top_logprobs = 0;
  std::optional<int32_t> prompt_logprobs = std::nullopt;
};

struct Window {
  uint64_t session_id = 0;
  uint32_t epoch = 0;
  uint64_t window_id = 0;  // 1, 2, ... within a session
  int32_t first_position = 0;
  std::vector<int32_t> candidate_ids;
};

enum class Outcome { kCommit, kRollback, kDiscarded };
enum class End { kNone, kStopToken, kMaxTokens, kContextLimit };

struct Verdict {
  uint64_t session_id = 0;
  uint64_t window_id = 0;  // 0: the opening verdict
  Outcome outcome = Outcome::kCommit;
  uint32_t epoch = 0;
  int32_t committed_length = 0;
  std::optional<int32_t> canonical_token;
  std::vector<float> logprobs;
  End end = End::kNone;
  int32_t cached_tokens = 0;  // opening: positions the verifier had in its prefix cache
  std::vector<TopLogprobs> top_logprobs{};
  std::vector<PromptLogprob> prompt_logprobs{};
  // How long the verifier had the window, by its own account; for metrics alone.
  std::optional<std::chrono::microseconds> verifier_time{};
};

struct VerifierInfo {
  std::string fingerprint;
  int32_t context_limit = 0;
  int32_t vocab_size = 0;
  int32_t max_window_size = 0;
  int32_t max_sessions = 0;  // 0: not known
};

// The engine's way to one verifier. Calls never block; what is sent while the stream is down is
// dropped, and OnVerifierDown tells the engine so.
class VerifierLink {
 public:
  virtual ~VerifierLink() = default;
  virtual void OpenSession(SessionOpening opening) = 0;
  virtual void SubmitWindow(Window window) = 0;
  virtual void CloseSession(uint64_t session_id) = 0;
  // The verifier broke the protocol (a verdict the engine refused): drop the stream, report it down
  // and connect again.
  virtual void Reset(absl::Status reason) = 0;
};

// A verifier's way to the engine. Called from any thread, in order for one verifier; must not
// block. `verifier` is the index of the link.
class VerifierEvents {
 public:
  virtual ~VerifierEvents() = default;
  // The stream is up and the verifier agrees on context limit and vocabulary.
  virtual void OnVerifierUp(int verifier, VerifierInfo info) = 0;
  // The stream broke, or the verifier is unfit (`status` says why); its sessions are gone.
  virtual void OnVerifierDown(int verifier, absl::Status status) = 0;
  virtual void OnVerdict(int verifier, Verdict verdict) = 0;
  virtual void OnSessionError(int verifier, uint64_t session_id, absl::Status status) = 0;
};

}  // namespace selfsame::decoder
