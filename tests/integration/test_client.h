#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/token_logprob.h"
#include "selfsame/v1/inference.pb.h"

namespace selfsame::testing {

// Everything one Generate call gave: choice 0, and the others.
struct GenerateResult {
  absl::Status status;
  std::string request_id;  // of the initial metadata
  std::optional<v1::Started> started;
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> logprob_bits;
  std::vector<TopLogprobs> top_logprobs;
  std::string text;
  std::optional<v1::Complete> complete;
  std::vector<int32_t> prompt_token_ids;  // this and the next: echoed
  std::string prompt_text;
  std::vector<PromptLogprob> prompt_logprobs;
  std::vector<GenerateResult> other_choices;
  // With stream_candidates: what is shown beyond `token_ids` and `text`; empty at the end.
  std::vector<v1::Chunk> candidates;
  int candidate_count = 0;
  int retract_count = 0;
  // What no stream may do: events out of order, positions with gaps, candidates that change without
  // a Retract. Empty when all is well.
  std::string violation;
};

// Token ids and the bits of all logprobs, with which determinism is measured.
bool IsSameAnswer(const GenerateResult& a, const GenerateResult& b);
// A line for failure messages.
std::string Describe(const GenerateResult& answer);

struct CallOptions {
  std::chrono::milliseconds timeout{60000};
  std::string request_id;  // sent as x-request-id when not empty
  // Called after each chunk with the tokens that stand so far; false: cancel the call.
  std::function<bool(int token_count)> on_chunk;
};

// A decoder's client; hides gRPC from the tests. Thread safe.
class TestClient {
 public:
  explicit TestClient(const std::string& address);
  ~TestClient();

  GenerateResult Generate(const v1::GenerateRequest& request, const CallOptions& options = {});
  // Sends `bytes` as a Generate request, whatever they are.
  absl::Status GenerateRaw(const std::string& bytes);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo();

  // The reflection service's answer to "list services", as it came.
  absl::StatusOr<std::string> ReflectServices();

  // What the health service says of `name`; NOT_FOUND for an unknown one.
  absl::StatusOr<bool> IsServing(const std::string& name);
  // Watches the health of `name` until it is as wanted; false after `timeout`.
  bool WaitForHealth(const std::string& name, bool is_serving,
                     std::chrono::milliseconds timeout = std::chrono::seconds(60));
  // Asks until no request is running or waiting, or until one is running; false after `timeout`.
  bool WaitUntilIdle(std::chrono::milliseconds timeout = std::chrono::seconds(60));
  bool WaitUntilBusy(std::chrono::milliseconds timeout = std::chrono::seconds(60));

 private:
  bool WaitForInfo(const std::function<bool(const v1::GetServerInfoResponse&)>& is_as_wanted,
                   std::chrono::milliseconds timeout);

  struct Stubs;
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace selfsame::testing
