#include "common/canonical/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>

#include "common/canonical/rungs.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/forwarding_ops.h"
#include "tests/testing/tiny_model.h"

namespace selfsame {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::unique_ptr<Ops> CpuOpsFor(Schedule schedule, int thread_count = 2) {
  auto ops = CreateCpuOps({.schedule = schedule, .thread_count = thread_count});
  EXPECT_TRUE(ops.ok()) << ops.status();
  return *std::move(ops);
}

class SelfTestTest : public ::testing::Test {
 protected:
  void Load(std::unique_ptr<Ops> ops, int32_t context_limit = 2048,
            testing::TinyModelOptions model_options = {}) {
    testing::WriteTinyModel(dir_.path(), model_options);
    auto model = Model::Load(
        dir_.path(), {.max_rows = 512, .max_logit_rows = 512, .context_limit = context_limit},
        std::move(ops));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  SelfTestReport Run(std::vector<int32_t> rungs = DefaultRungs(512)) {
    auto report = RunSelfTest(*model_, rungs);
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  }

  testing::TempDir dir_;
  std::unique_ptr<Model> model_;
};

TEST_F(SelfTestTest, TheCanonicalScheduleGivesTheSameBitsAtEveryRung) {
  Load(CpuOpsFor(Schedule::kCanonical));
  const SelfTestReport report = Run();
  EXPECT_THAT(report.failures, IsEmpty());
  EXPECT_EQ(report.rungs, DefaultRungs(512));
}

// The decoder's own arithmetic is the order-changing one the test must not let pass: it picks
// splits by the number of rows.
TEST_F(SelfTestTest, TheFastScheduleFails) {
  Load(CpuOpsFor(Schedule::kFast));
  const SelfTestReport report = Run();
  EXPECT_THAT(report.failures, Not(IsEmpty()));
  EXPECT_THAT(report.rungs, Not(Contains(Ge(64))));
}

TEST_F(SelfTestTest, ShortContextsAndOtherShapesPassToo) {
  for (const int32_t context_limit : {2, 17, 40}) {
    Load(CpuOpsFor(Schedule::kCanonical), context_limit,
         {.is_qwen3 = true, .tie_word_embeddings = true, .head_count = 6, .kv_head_count = 2});
    EXPECT_THAT(Run({1, 3, 64}).failures, IsEmpty()) << context_limit;
  }
}

TEST_F(SelfTestTest, TheGoldenDigestDependsOnTheModelAlone) {
  Load(CpuOpsFor(Schedule::kCanonical, 1));
  const std::string digest = Run({1, 8}).golden_digest;
  EXPECT_THAT(digest, SizeIs(64));
  EXPECT_EQ(Run({4, 32}).golden_digest, digest);
  Load(CpuOpsFor(Schedule::kCanonical, 2));
  EXPECT_EQ(Run({1, 8}).golden_digest, digest);
  Load(CpuOpsFor(Schedule::kCanonical, 2), 2048, {.seed = 2});
  EXPECT_NE(Run({1, 8}).golden_digest, digest);
}

// Spoils the lowest bit of one output of every product of at least `min_rows` rows, as another
// order of summation would.
class OtherSumForManyRows final : public testing::ForwardingOps {
 public:
  OtherSumForManyRows(std::unique_ptr<Ops> ops, int32_t min_rows)
      : ForwardingOps(std::move(ops)), min_rows_(min_rows) {}
  void Gemm(const BFloat16* x, int32_t rows, const PackedMatrix& w, const BFloat16* bias,
            BFloat16* y) override {
    testing::ForwardingOps::Gemm(x, rows, w, bias, y);
    for (int64_t row = 0; row < rows && rows >= min_rows_; ++row) y[row * w.n()].bits ^= 1u;
  }

 private:
  const int32_t min_rows_;
};

TEST_F(SelfTestTest, RungsWithAnotherOrderOfSummationAreDropped) {
  Load(std::make_unique<OtherSumForManyRows>(CpuOpsFor(Schedule::kCanonical), 96));
  const SelfTestReport report = Run({1, 8, 64, 96, 128});
  EXPECT_THAT(report.rungs, ElementsAre(1, 8, 64));
  EXPECT_THAT(report.failures, ElementsAre(HasSubstr("rung of 96 rows"), HasSubstr("128")));
}

// The head as it would be with another order of summation from `min_rows` logit rows on.
class OtherHeadForManyRows final : public testing::ForwardingOps {
 public:
  OtherHeadForManyRows(std::unique_ptr<Ops> ops, int32_t min_rows)
      : ForwardingOps(std::move(ops)), min_rows_(min_rows) {}
  void Logits(const BFloat16* x, int32_t rows, const PackedMatrix& w, float* y) override {
    testing::ForwardingOps::Logits(x, rows, w, y);
    if (pass().sequences.empty()) return;  // no forward pass
    for (int64_t row = 0; row < rows && rows >= min_rows_; ++row) y[row * w.n()] *= 1.0000001f;
  }

 private:
  const int32_t min_rows_;
};

TEST_F(SelfTestTest, TheHeadIsComparedAtEveryRowCount) {
  Load(std::make_unique<OtherHeadForManyRows>(CpuOpsFor(Schedule::kCanonical), 64));
  EXPECT_THAT(Run({1, 8, 64, 128, 256, 512}).rungs, ElementsAre(1, 8));
  Load(std::make_unique<OtherHeadForManyRows>(CpuOpsFor(Schedule::kCanonical), 400));
  EXPECT_THAT(Run({1, 8, 64, 128, 256, 512}).rungs, ElementsAre(1, 8, 64, 128, 256));
}

// Records the matrix products outside of forward passes, and spoils those of one k.
class ProbedProducts final : public testing::ForwardingOps {
 public:
  ProbedProducts(std::unique_ptr<Ops> ops, int64_t spoiled_k,
                 std::set<std::pair<int64_t, int64_t>>& shapes)
      : ForwardingOps(std::move(ops)), spoiled_k_(spoiled_k), shapes_(shapes) {}
  void Gemm(const BFloat16* x, int32_t rows, const PackedMatrix& w, const BFloat16* bias,
            BFloat16* y) override {
    testing::ForwardingOps::Gemm(x, rows, w, bias, y);
    if (!pass().sequences.empty()) return;
    shapes_.insert({w.n(), w.k()});
    if (w.k() == spoiled_k_ && rows >= 16) y[(rows - 1) * w.n() + w.n() - 1].bits ^= 1u;
  }

 private:
  const int64_t spoiled_k_;
  std::set<std::pair<int64_t, int64_t>>& shapes_;  // n, k
};

TEST_F(SelfTestTest, TheShapesOfALayersProductsAreProbed) {
  std::set<std::pair<int64_t, int64_t>> shapes;
  const testing::TinyModelOptions options{.attention_bias = true,
                                          .hidden_size = 64,
                                          .intermediate_size = 144,
                                          .head_count = 6,
                                          .kv_head_count = 2,
                                          .head_dim = 16};
  Load(std::make_unique<ProbedProducts>(CpuOpsFor(Schedule::kCanonical), 96, shapes), 2048,
       options);
  EXPECT_THAT(Run({1, 8, 16, 64}).rungs, ElementsAre(1, 8));
  EXPECT_THAT(shapes, ElementsAre(std::pair(64, 96), std::pair(64, 144), std::pair(160, 64),
                                  std::pair(288, 64)));
}

// Attention whose result depends on where in the pass a row is.
class AttentionByOffset final : public testing::ForwardingOps {
 public:
  using testing::ForwardingOps::ForwardingOps;
  void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                 BFloat16* out) override {
    testing::ForwardingOps::Attention(shape, qkv, kv, out);
    for (int64_t row = 5; row < pass().row_count; ++row) out[row * shape.output_width()].bits ^= 1u;
  }
};

TEST_F(SelfTestTest, RowOffsetsAreTried) {
  Load(std::make_unique<AttentionByOffset>(CpuOpsFor(Schedule::kCanonical)));
  EXPECT_THAT(Run({1, 4, 8, 64}).rungs, ElementsAre(1, 4));
}

// Rows that are not alone in their sequence's pass come out otherwise, as with kernels that treat
// decode and prefill apart.
class AttentionByRowsOfSequence final : public testing::ForwardingOps {
 public:
  using testing::ForwardingOps::ForwardingOps;
  void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                 BFloat16* out) override {
    testing::ForwardingOps::Attention(shape, qkv, kv, out);
    for (const SequenceRows& sequence : pass().sequences) {
      if (sequence.row_count < 3) continue;
      const int64_t row = sequence.first_row + sequence.row_count - 1;
      out[row * shape.output_width()].bits ^= 1u;
    }
  }
};

TEST_F(SelfTestTest, DecodeRowsWindowsAndChunksAreCompared) {
  Load(std::make_unique<AttentionByRowsOfSequence>(CpuOpsFor(Schedule::kCanonical)));
  EXPECT_THAT(Run({1, 2, 16, 128}).rungs, ElementsAre(1, 2));
}

// Multiplies what it should not read by zero, which NaN survives.
class AttentionReadsNextPosition final : public testing::ForwardingOps {
 public:
  using testing::ForwardingOps::ForwardingOps;
  void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                 BFloat16* out) override {
    testing::ForwardingOps::Attention(shape, qkv, kv, out);
    const int64_t block_elements =
        int64_t{2} * shape.kv_head_count * kKvBlockTokens * shape.head_dim;
    for (const SequenceRows& sequence : pass().sequences) {
      const int32_t next = sequence.first_position + sequence.row_count;
      if (next % kKvBlockTokens == 0) continue;
      const BFloat16 value = kv.data[sequence.block_table[next / kKvBlockTokens] * block_elements +
                                     int64_t{next % kKvBlockTokens} * shape.head_dim];
      const int64_t row = sequence.first_row + sequence.row_count - 1;
      BFloat16& element = out[row * shape.output_width()];
      element = ToBFloat16(ToFloat(element) + 0.0f * ToFloat(value));
    }
  }
};

TEST_F(SelfTestTest, ReadingAnUnwrittenPositionIsNoticed) {
  Load(std::make_unique<AttentionReadsNextPosition>(CpuOpsFor(Schedule::kCanonical)));
  const auto report = RunSelfTest(*model_, std::vector<int32_t>{1, 16});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("not finite"));
}

// Padding rows write KV at position 0 of block 0.
class PaddingWritesKv final : public testing::ForwardingOps {
 public:
  using testing::ForwardingOps::ForwardingOps;
  void RopeAndStoreKv(const AttentionShape& shape, const QkNorm* norm, const RopeTable& rope,
                      BFloat16* qkv, KvLayer kv) override {
    testing::ForwardingOps::RopeAndStoreKv(shape, norm, rope, qkv, kv);
    int32_t covered = 0;
    for (const SequenceRows& sequence : pass().sequences) covered += sequence.row_count;
    if (covered < pass().row_count) kv.data[0] = ToBFloat16(1.0f);
  }
};

TEST_F(SelfTestTest, KvOfPaddingRowsIsNoticed) {
  Load(std::make_unique<PaddingWritesKv>(CpuOpsFor(Schedule::kCanonical)));
  const SelfTestReport report = Run({1, 16});
  EXPECT_THAT(report.rungs, ElementsAre(1));
  EXPECT_THAT(report.failures, Contains(HasSubstr("padding")));
}

}  // namespace
}  // namespace selfsame
