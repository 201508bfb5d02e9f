#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/token_logprob.h"

// What the commands need of a decoder, without gRPC, so that tests can stand in for one.
namespace selfsame::client {

using SteadyTime = std::chrono::steady_clock::time_point;

inline constexpr std::string_view kDefaultServer = "127.0.0.1:50051";

struct ChatMessage {
  std::string role;
  std::string content;
};

// Gets text as it arrives.
using TextCallback = std::function<void(std::string_view)>;

using PromptInput = std::variant<std::string, std::vector<int32_t>, std::vector<ChatMessage>>;

// See GenerateRequest in inference.proto: what is unset takes the server's default.
struct Request {
  PromptInput input;
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::map<int32_t, float> logit_bias;  // by token id
  std::optional<uint64_t> seed;
  std::optional<int32_t> max_tokens;
  std::optional<int32_t> min_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool is_deterministic = false;
  bool logprobs = false;
  std::optional<std::string> expected_fingerprint;
  std::optional<int32_t> priority;  // lower is sooner
  // Cancels the call once this many output tokens have come; Generate then returns CANCELLED.
  std::optional<int32_t> cancel_after_tokens;
  bool stream_candidates = false;
  // With stream_candidates: gets all the text that is shown and does not stand, which follows the
  // text so far; again after every event, and empty at the end. May be null.
  TextCallback on_candidates;
  // How often an answer whose stream breaks (UNAVAILABLE) is gone on with.
  int32_t resume_attempts = 0;
  int32_t n = 1;
  int32_t top_logprobs = 0;
  std::optional<int32_t> prompt_logprobs;
  bool echo = false;
};

enum class FinishReason { kStop, kLength };

std::string_view FinishReasonName(FinishReason reason);

// Everything a finished request returned: choice 0, and the others.
struct Answer {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;            // as many as token_ids when asked for, otherwise empty
  std::vector<TopLogprobs> top_logprobs;  // likewise
  std::string text;
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token_id;

  std::string request_id;
  float temperature = 0.0f;  // this and the next nine as the server resolved them
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  int32_t max_tokens = 0;
  int32_t min_tokens = 0;
  int32_t prompt_tokens = 0;

  std::string fingerprint;  // empty for an ordinary request
  int32_t windows = 0;
  int32_t rollbacks = 0;
  int32_t rolled_back_tokens = 0;
  int32_t redecoded_tokens = 0;
  int32_t cached_prompt_tokens = 0;           // found in the decoder's prefix cache
  int32_t verifier_cached_prompt_tokens = 0;  // and in the verifier's
  int32_t candidates = 0;                     // received; with stream_candidates
  int32_t retracts = 0;
  int32_t resumes = 0;  // streams that broke

  // Of choice 0 only.
  std::vector<int32_t> prompt_token_ids;  // this and the next with echo
  std::string prompt_text;
  std::vector<PromptLogprob> prompt_logprobs;  // of the prompt's tokens but the first, if asked for
  std::vector<Answer> other_choices;           // 1, 2, ..

  // When the first stream began: latencies hold the streams that broke, and the pauses after them.
  SteadyTime sent;
  SteadyTime first_token;  // arrival of the first and last token; `sent` when there was none
  SteadyTime last_token;
};

struct VerifierStatus {
  std::string address;
  bool connected = false;
  std::string fingerprint;
  std::string last_error;
};

// See GetServerInfoResponse in inference.proto.
struct ServerInfo {
  std::string version;
  std::string model;
  int32_t context_limit = 0;
  int32_t vocab_size = 0;
  std::string arithmetic;
  int32_t max_batch_size = 0;
  int32_t window_size = 0;
  std::vector<VerifierStatus> verifiers;
  int32_t running_requests = 0;
  int32_t waiting_requests = 0;
};

// Calls block and are safe from any thread.
class InferenceApi {
 public:
  virtual ~InferenceApi() = default;
  // `on_text` may be null. It gets what stands of choice 0, after the prompt's text with echo,
  // once, however many streams it came by. An error after some text leaves that text delivered. A
  // stream that breaks the protocol (a gap in positions, a wrong count) is INTERNAL.
  // INVALID_ARGUMENT for several choices with stream_candidates or resume_attempts.
  virtual absl::StatusOr<Answer> Generate(const Request& request, const TextCallback& on_text) = 0;
  virtual absl::StatusOr<ServerInfo> GetServerInfo() = 0;
};

}  // namespace selfsame::client
