#pragma once

// What the engine's tests stand on: a tiny random model and its tokeniser, requests of it with
// their canonical answers, a clock, and windows cut at random. canonical_verifier.h and
// recording_sink.h are what stands on the engine's other two sides.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"
#include "decoder/engine/types.h"
#include "decoder/engine/window_policy.h"
#include "tests/testing/controlled_ops.h"
#include "tests/testing/tiny_model.h"

namespace selfsame::decoder {

inline constexpr int32_t kTestContextLimit = 256;
inline constexpr int32_t kTestMaxRows = 48;
inline constexpr int32_t kTestMaxLogitRows = 8;
inline constexpr int32_t kTestEos = 2;

// The verifier's model, and the decoder's: the same but for the last bit of some weights, so that
// it proposes what is often, not always, the canonical token, whatever the two schedules do.
class TinyWorld {
 public:
  static TinyWorld& Get();

  std::unique_ptr<Model> LoadCanonical() const;
  std::unique_ptr<Model> LoadFast() const;
  // The same; `ops` is the model's.
  std::unique_ptr<Model> LoadFast(testing::ControlledOps*& ops) const;
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  // The request's answer by definition, cut at its stop strings. Logprobs and text included.
  struct Expected {
    std::vector<int32_t> token_ids;
    std::vector<float> logprobs;
    std::vector<TopLogprobs> top_logprobs;
    std::vector<PromptLogprob> prompt_logprobs;
    std::string text;
    FinishReason reason = FinishReason::kStop;
  };
  Expected Answer(const GenerationRequest& request);

 private:
  TinyWorld();

  selfsame::testing::TempDir canonical_dir_;
  selfsame::testing::TempDir fast_dir_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Model> model_;
};

// A deterministic request; `index` picks prompt, and greedy (even) or seeded sampling (odd).
GenerationRequest TestRequest(int index, int32_t max_tokens);

class FakeClock final : public Clock {
 public:
  SteadyTime Now() const override { return now_; }
  void Advance(std::chrono::milliseconds by) { now_ += by; }

 private:
  SteadyTime now_ = SteadyTime() + std::chrono::hours(1);
};

// Cuts at random, from a seed, and takes no notice of age.
class RandomWindowPolicy final : public WindowPolicy {
 public:
  RandomWindowPolicy(uint32_t seed, int32_t window_size)
      : state_(seed), window_size_(window_size) {}
  int32_t Cut(const WindowQuery& query) override;
  int32_t FullSize(int32_t) const override { return window_size_; }
  std::optional<std::chrono::milliseconds> max_age() const override { return std::nullopt; }

 private:
  uint32_t Below(uint32_t bound);
  uint32_t state_;
  int32_t window_size_;
};

}  // namespace selfsame::decoder
