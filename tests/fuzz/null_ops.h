#pragma once

#include "tests/unit/model/fake_ops.h"

namespace selfsame::fuzz {

// A backend that computes nothing. The token of a row depends on its position and seed only, so a
// fuzzer knows the canonical answer.
class NullOps final : public FakeOps {
 public:
  explicit NullOps(int32_t vocab_size) : vocab_size_(vocab_size) {}

  static int32_t TokenAt(int32_t position, uint64_t seed, int32_t vocab_size) {
    uint64_t hash = (static_cast<uint64_t>(position) + 1) * 0x9e3779b97f4a7c15u + seed;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    return static_cast<int32_t>((hash ^ (hash >> 27)) % static_cast<uint64_t>(vocab_size));
  }

  void BeginPass(const Pass&) override {}
  absl::Status EndPass() override { return absl::OkStatus(); }
  void Embed(const PackedMatrix&, BFloat16*) override {}
  void RmsNorm(const BFloat16*, const BFloat16*, float, int32_t, int32_t, BFloat16*) override {}
  void AddRmsNorm(BFloat16*, const BFloat16*, const BFloat16*, float, int32_t, int32_t,
                  BFloat16*) override {}
  void Gemm(const BFloat16*, int32_t, const PackedMatrix&, const BFloat16*, BFloat16*) override {}
  void Logits(const BFloat16*, int32_t, const PackedMatrix&, float*) override {}
  void GatherLogitRows(const BFloat16*, int32_t, BFloat16*) override {}
  void RopeAndStoreKv(const AttentionShape&, const QkNorm*, const RopeTable&, BFloat16*,
                      KvLayer) override {}
  void Attention(const AttentionShape&, const BFloat16*, KvLayer, BFloat16*) override {}
  void SiluMul(const BFloat16*, int32_t, int32_t, BFloat16*) override {}
  void ReduceRanks(BFloat16*, int64_t) override {}
  void Sample(const float*, int32_t, std::span<const SampleRow> params,
              std::span<SampledToken> out) override {
    for (size_t i = 0; i < params.size(); ++i) {
      out[i] = {.token_id = TokenAt(params[i].position, params[i].seed, vocab_size_),
                .logprob = -static_cast<float>(params[i].position),
                .top = TopLogprobs(static_cast<size_t>(params[i].top_count))};
      if (params[i].given_token >= 0) out[i].token_id = params[i].given_token;
    }
  }

 private:
  const int32_t vocab_size_;
};

}  // namespace selfsame::fuzz
