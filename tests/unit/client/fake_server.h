#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "decoder/client/inference_api.h"

namespace selfsame::client {

// An answer of `length` tokens that depends on the seed alone.
inline Answer MakeAnswer(uint64_t seed, int length = 8) {
  Answer answer;
  for (int i = 0; i < length; ++i) {
    answer.token_ids.push_back(static_cast<int32_t>(seed * 100 + i));
    answer.logprobs.push_back(-0.25f * static_cast<float>(i + 1));
  }
  answer.text = "text";
  return answer;
}

// Stands in for a decoder: every request gets MakeAnswer of its seed, which `alter` may change.
class FakeServer : public InferenceApi {
 public:
  using Alter = std::function<absl::StatusOr<Answer>(const Request&, Answer, int index)>;

  explicit FakeServer(Alter alter = nullptr) : alter_(std::move(alter)) {}

  absl::StatusOr<Answer> Generate(const Request& request, const TextCallback&) override {
    Answer answer = MakeAnswer(request.seed.value_or(0));
    if (request.is_deterministic) {
      answer.fingerprint = "fp";
      answer.windows = 3;
      answer.rollbacks = 1;
      answer.rolled_back_tokens = 5;
      answer.redecoded_tokens = 4;
    }
    const MutexLock lock(mutex_);
    requests_.push_back(request);
    const int index = static_cast<int>(requests_.size()) - 1;
    if (alter_) return alter_(request, std::move(answer), index);
    return answer;
  }

  absl::StatusOr<ServerInfo> GetServerInfo() override {
    ServerInfo info;
    info.model = "fake";
    info.verifiers = verifiers;
    return info;
  }

  std::vector<VerifierStatus> verifiers;

 private:
  Alter alter_;
  Mutex mutex_;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace selfsame::client
