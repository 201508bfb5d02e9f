#pragma once

// What crosses the border between the verifier's engine and its service. Plain data; no gRPC. The
// words are those of proto/selfsame/v1/verification.proto.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/sampling/logit_rules.h"
#include "common/token_logprob.h"

namespace selfsame::verifier {

using SteadyTime = std::chrono::steady_clock::time_point;

// Opens a session: canonical prefill of prompt and committed tokens.
struct SessionOpening {
  uint64_t session_id = 0;  // never used again on its stream
  std::vector<int32_t> prompt_token_ids;
  std::vector<int32_t> committed_token_ids;  // output tokens that already stand
  float temperature = 0.0f;                  // 0: greedy
  int32_t top_k = 0;                         // 0: off
  float top_p = 1.0f;                        // 1: off
  float min_p = 0.0f;                        // 0: off
  LogitRules logit_rules = {};
  uint64_t seed = 0;
  int32_t choice_index = 0;
  int32_t max_tokens = 0;  // output tokens, committed ones included
  std::vector<int32_t> stop_token_ids;
  std::optional<std::string> expected_fingerprint;
  int32_t top_logprobs = 0;                // alternatives for each output token
  std::optional<int32_t> prompt_logprobs;  // for each prompt token; unset: none wanted
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
  uint32_t epoch = 0;            // the session's from now on
  int32_t committed_length = 0;  // prompt and output tokens that stand
  std::optional<int32_t> canonical_token;
  std::vector<float> logprobs;  // of the newly committed tokens, in order
  End end = End::kNone;
  int32_t cached_tokens = 0;  // opening: positions whose KV was found in the prefix cache
  std::vector<TopLogprobs> top_logprobs{};  // as many as logprobs, when asked for
  // Opening, when asked for: of the prompt's tokens but the first.
  std::vector<PromptLogprob> prompt_logprobs{};
  // Of a window: from its arrival to the end of its pass. Unset where time is not measured.
  std::optional<std::chrono::nanoseconds> verifier_time{};
};

// Receives what the engine says to one stream. Called on the engine thread: must not block, and
// must not call back into the engine.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  virtual void OnVerdict(Verdict verdict) = 0;
  // The session is gone; no verdict for it follows.
  virtual void OnSessionError(uint64_t session_id, const absl::Status& status) = 0;
  // The engine has taken in everything that Engine::Post accepted before it returned false.
  virtual void OnInboxRoom() = 0;
  // The engine takes no further messages of this stream and calls the sink no more.
  virtual void OnStreamEnd(const absl::Status& status) = 0;
};

// What a verifier holds its clients to, and what it tells them about itself.
struct VerifierInfo {
  std::string fingerprint;
  std::string arithmetic;
  int32_t context_limit = 0;
  int32_t vocab_size = 0;
  int32_t max_window_size = 0;
  int32_t max_sessions = 0;
  std::vector<int32_t> rungs;  // ascending
};

}  // namespace selfsame::verifier
