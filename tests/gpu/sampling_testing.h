#pragma once

// What the tests of sampling on a device share.

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SamplingTest : public ::testing::Test {
 protected:
  static constexpr int32_t kMaxRows = 300;

  SamplingTest()
      : ops_(MakeCudaOps({.schedule = Schedule::kCanonical, .max_logit_rows = kMaxRows})) {}

  std::vector<SampledToken> Sample(const std::vector<float>& logits, int32_t vocab,
                                   const std::vector<SampleRow>& params) {
    const auto device = Upload(*ops_, logits);
    std::vector<SampledToken> out(params.size());
    ops_->Sample(static_cast<const float*>(device->data()), vocab, params, out);
    return out;
  }
  SampledToken SampleOne(const std::vector<float>& logits, const SampleRow& params) {
    return Sample(logits, static_cast<int32_t>(logits.size()), {params}).front();
  }

  std::unique_ptr<Ops> ops_;
};

std::vector<float> RandomLogits(uint64_t seed, int64_t count, float scale);

// At most `count` edits of distinct tokens, some of which ban theirs.
std::vector<LogitEdit> RandomEdits(uint64_t seed, int32_t vocab, int32_t count);

}  // namespace selfsame::testing
