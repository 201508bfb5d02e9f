#include "common/model/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/recording_ops.h"
#include "tests/testing/tiny_model.h"

namespace selfsame {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::RecordedPass;
using testing::RecordingOps;
using ::testing::SizeIs;

class WarmUpTest : public ::testing::Test {
 protected:
  WarmUpTest() { testing::WriteTinyModel(dir_.path(), {}); }

  std::unique_ptr<Ops> CpuBackend() {
    auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 2});
    EXPECT_TRUE(ops.ok()) << ops.status();
    return *std::move(ops);
  }

  void Run(std::unique_ptr<Ops> ops, const WarmUpOptions& options, int32_t block_count = 64) {
    auto model = Model::Load(
        dir_.path(), {.max_rows = 48, .max_logit_rows = 48, .context_limit = 256}, std::move(ops));
    ASSERT_TRUE(model.ok()) << model.status();
    auto kv = (*model)->CreateKvCache(block_count);
    ASSERT_TRUE(kv.ok()) << kv.status();
    const absl::Status status = WarmUp(**model, **kv, options);
    ASSERT_TRUE(status.ok()) << status;
    for (const RecordedPass& pass : passes_) {
      EXPECT_EQ(pass.kv, (*kv)->layer(1).data) << "of another cache";
    }
  }

  std::unique_ptr<Ops> Recording() { return std::make_unique<RecordingOps>(CpuBackend(), passes_); }

  testing::TempDir dir_;
  std::vector<RecordedPass> passes_;
};

TEST_F(WarmUpTest, ADecodersPassesAreOfSingleRowsUntilTheyAreSettled) {
  Run(Recording(), {});
  ASSERT_THAT(passes_, SizeIs(2 * RecordingOps::kRunsToSettle));
  EXPECT_THAT(passes_[0].sequence_rows, ElementsAre(1));
  EXPECT_EQ(passes_[1].row_count, 1);
  EXPECT_EQ(passes_[2].row_count, 5);
  EXPECT_THAT(passes_[3].sequence_rows, ElementsAre(1, 1, 1, 1, 1));
  EXPECT_EQ(passes_[3].logit_rows, 5);
}

TEST_F(WarmUpTest, PassesAreOfAsManySequencesAsThereMayBe) {
  Run(Recording(), {.max_sequences = 3});
  EXPECT_EQ(passes_.back().row_count, 3);
}

TEST_F(WarmUpTest, ACanonicalDecodersPassesArePaddedForEveryNumberOfRequests) {
  const std::vector<int32_t> rungs = {1, 4, 16, 48};
  Run(Recording(), {.rungs = rungs});
  ASSERT_THAT(passes_, SizeIs(5 * RecordingOps::kRunsToSettle));
  const std::vector<int32_t> padded = {1, 4, 4, 4, 16};
  for (size_t i = 0; i < passes_.size(); ++i) {
    const size_t rows = i / RecordingOps::kRunsToSettle;
    EXPECT_EQ(passes_[i].row_count, padded[rows]);
    EXPECT_EQ(passes_[i].logit_rows, rows + 1);
    EXPECT_THAT(passes_[i].sequence_rows, SizeIs(rows + 1));
    EXPECT_THAT(passes_[i].sequence_rows, Each(1));
  }
}

TEST_F(WarmUpTest, AVerifiersPassesAreFullOfWindowsAtEachRung) {
  const std::vector<int32_t> rungs = {1, 16, 40, 48};
  Run(Recording(), {.rungs = rungs, .window_size = 20});
  ASSERT_THAT(passes_, SizeIs(rungs.size() * RecordingOps::kRunsToSettle));
  for (size_t i = 0; i < passes_.size(); ++i) {
    EXPECT_EQ(passes_[i].row_count, rungs[i / RecordingOps::kRunsToSettle]);
    EXPECT_EQ(passes_[i].logit_rows, passes_[i].row_count);
  }
  EXPECT_THAT(passes_[3].sequence_rows, ElementsAre(16));
  EXPECT_THAT(passes_[5].sequence_rows, ElementsAre(20, 20));
  EXPECT_THAT(passes_[7].sequence_rows, ElementsAre(20, 20, 8));
}

TEST_F(WarmUpTest, RowsThatFindNoBlocksAreLeftOut) {
  const std::vector<int32_t> rungs = {48};
  Run(Recording(), {.rungs = rungs, .window_size = 20}, 3);
  EXPECT_THAT(passes_.back().sequence_rows, ElementsAre(20));
  EXPECT_EQ(passes_.back().row_count, 48);
}

// A backend that records nothing does not run what a self-test has run.
class CountedOps final : public testing::ForwardingOps {
 public:
  CountedOps(std::unique_ptr<Ops> ops, int& passes)
      : ForwardingOps(std::move(ops)), passes_(passes) {}
  void BeginPass(const Pass& pass) override {
    testing::ForwardingOps::BeginPass(pass);
    ++passes_;
  }

 private:
  int& passes_;
};

TEST_F(WarmUpTest, ACpuTakesOnePass) {
  int passes = 0;
  const std::vector<int32_t> rungs = {1, 16, 48};
  Run(std::make_unique<CountedOps>(CpuBackend(), passes), {.rungs = rungs, .window_size = 20});
  EXPECT_EQ(passes, 1);
}

}  // namespace
}  // namespace selfsame
