// Lists of ops that come again run as graphs, on what is then in their buffers.

#include "kernels/cuda/pass_graphs.h"

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/cuda/gemm_plan_file.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/testing/tiny_model.h"

namespace selfsame::cuda {
namespace {

using testing::CountDifferent;
using testing::RandomRows;
using testing::Value;

constexpr int32_t kRows = 5;
constexpr int32_t kWidth = 96;

class PassGraphsTest : public ::testing::Test {
 protected:
  PassGraphsTest() {
    stream_.emplace(Value(Stream::Create()));
    plans_.emplace(
        Value(GemmLauncher::Create(stream_->get())),
        GemmPlansOptions{.max_rows = 8, .max_logit_rows = 8, .plan_file = {}, .scope = {}});
    memory_ = Value(Memory::Create(size_t{4} * kRows * kWidth * sizeof(BFloat16)));
  }

  BFloat16* input() { return memory_.data<BFloat16>(); }
  BFloat16* output() { return input() + 2 * kRows * kWidth; }

  std::vector<PassOp> Ops(int32_t rows) {
    return {SiluMulOp{.gate_up = input(), .rows = rows, .width = kWidth, .out = output()}};
  }

  // The output of a run over `values`, where the output held poison.
  std::vector<BFloat16> Run(const std::vector<BFloat16>& values, int32_t rows, PassGraphs& graphs) {
    std::vector<BFloat16> result(static_cast<size_t>(kRows * kWidth), testing::kPoison);
    const size_t bytes = result.size() * sizeof(BFloat16);
    SELFSAME_CHECK(cudaMemcpy(input(), values.data(), 2 * bytes, cudaMemcpyDefault) == cudaSuccess);
    SELFSAME_CHECK(cudaMemcpy(output(), result.data(), bytes, cudaMemcpyDefault) == cudaSuccess);
    EXPECT_TRUE(graphs.Run(Ops(rows), *plans_, stream_->get()).ok());
    SELFSAME_CHECK(cudaStreamSynchronize(stream_->get()) == cudaSuccess);
    SELFSAME_CHECK(cudaMemcpy(result.data(), output(), bytes, cudaMemcpyDefault) == cudaSuccess);
    return result;
  }

  std::optional<Stream> stream_;
  std::optional<GemmPlans> plans_;
  Memory memory_;
};

TEST_F(PassGraphsTest, TheSecondRunOfAListIsAGraphAndReadsTheNewContents) {
  PassGraphs graphs;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const auto values = RandomRows(seed, 2 * kRows * kWidth);
    PassGraphs fresh;
    const auto expected = Run(values, kRows, fresh);
    EXPECT_EQ(CountDifferent(Run(values, kRows, graphs), expected), 0u);
    EXPECT_EQ(fresh.replay_count(), 0u);
    EXPECT_EQ(graphs.replay_count(), seed - 1);
  }
}

TEST_F(PassGraphsTest, AListThatDiffersInOneArgumentIsAnother) {
  PassGraphs graphs;
  const auto values = RandomRows(9, 2 * kRows * kWidth);
  static_cast<void>(Run(values, kRows, graphs));
  static_cast<void>(Run(values, kRows, graphs));
  const auto shorter = Run(values, kRows - 1, graphs);
  EXPECT_EQ(graphs.replay_count(), 1u);
  EXPECT_EQ(shorter.back().bits, testing::kPoison.bits);
  // More lists than are kept: what is forgotten is enqueued again.
  const auto first = Ops(kRows);
  for (int32_t i = 0; i < 200; ++i) {
    std::vector<PassOp> ops = Ops(1);
    std::get<SiluMulOp>(ops[0]).out = output() + i;
    ASSERT_TRUE(graphs.Run(ops, *plans_, stream_->get()).ok());
  }
  const auto again = Run(values, kRows, graphs);
  EXPECT_EQ(graphs.replay_count(), 1u);
  EXPECT_NE(again.back().bits, testing::kPoison.bits);
}

TEST_F(PassGraphsTest, AForgottenListIsRecordedAnew) {
  PassGraphs graphs;
  const auto values = RandomRows(3, 2 * kRows * kWidth);
  const auto expected = Run(values, kRows, graphs);
  static_cast<void>(Run(values, kRows, graphs));
  EXPECT_EQ(graphs.replay_count(), 1u);
  graphs.Clear();
  EXPECT_EQ(CountDifferent(Run(values, kRows, graphs), expected), 0u);
  EXPECT_EQ(graphs.replay_count(), 1u);
  EXPECT_EQ(CountDifferent(Run(values, kRows, graphs), expected), 0u);
  EXPECT_EQ(graphs.replay_count(), 2u);
}

// Products by plans of a file, so that nothing is searched for: small enough for compute-sanitizer.
class ProductGraphsTest : public ::testing::Test {
 protected:
  static constexpr int32_t kProductRows = 8;
  static constexpr GemmShape kSplit = {.n = 64, .k = 256};  // two slices, which the norm adds
  static constexpr GemmShape kPlain = {.n = 48, .k = 64};
  enum Place : size_t { kX, kSplitW, kY, kResidual, kNormW, kNormed, kPlainW, kOut, kPlaces };
  static constexpr std::array<size_t, kPlaces> kSizes = {
      kProductRows * 256, 64 * 256, kProductRows * 64, kProductRows * 64, 64,
      kProductRows * 64,  48 * 64,  kProductRows * 48};

  ProductGraphsTest() : stream_(Value(Stream::Create())) {
    const std::string file = (std::filesystem::path(dir_.path()) / "plans.json").string();
    GemmLauncher launcher = Value(GemmLauncher::Create(stream_.get()));
    const GemmPlansOptions options = {.schedule = Schedule::kFast,
                                      .class_slack = 0.0,
                                      .max_rows = kProductRows,
                                      .max_logit_rows = kProductRows,
                                      .plan_file = file,
                                      .scope = "test"};
    GemmPlanKey key;
    key.scope = options.scope;
    key.options.rungs = RungsFor(kProductRows, Schedule::kFast);
    for (const auto& [shape, splits] : {std::pair(kSplit, 2), std::pair(kPlain, 1)}) {
      const auto proposed = launcher.Propose(shape, kProductRows, splits, 1);
      SELFSAME_CHECK(!proposed.empty());
      const GemmPlan plan = {.rows = kProductRows, .algorithm = proposed[0]};
      key.shape = shape;
      SELFSAME_CHECK(SavePlans(file, key, {plan}).ok());
    }
    plans_.emplace(std::move(launcher), options);
    for (size_t i = 0; i < kPlaces; ++i) {
      buffers_[i] = Value(Memory::Create(kSizes[i] * sizeof(BFloat16)));
    }
  }

  BFloat16* At(Place place) { return buffers_[place].data<BFloat16>(); }

  std::vector<PassOp> Ops() {
    const RmsNormArgs norm = {.x = At(kY),
                              .product = {},
                              .residual = At(kResidual),
                              .weight = At(kNormW),
                              .out = At(kNormed),
                              .epsilon = 1e-5f,
                              .rows = kProductRows,
                              .width = 64};
    const GemmOp split = {
        .shape = kSplit,
        .rows = kProductRows,
        .operands = {.x = At(kX), .w = At(kSplitW), .bias = nullptr, .y = At(kY)}};
    const GemmOp plain = {
        .shape = kPlain,
        .rows = kProductRows,
        .operands = {.x = At(kNormed), .w = At(kPlainW), .bias = nullptr, .y = At(kOut)}};
    return {GemmNormOp{.gemm = split, .norm = norm}, plain};
  }

  // What a run leaves in the buffers, which held values of `seed`.
  std::vector<BFloat16> Run(uint64_t seed, PassGraphs& graphs) {
    for (size_t i = 0; i < kPlaces; ++i) {
      const auto values = RandomRows(seed * kPlaces + i, static_cast<int64_t>(kSizes[i]));
      SELFSAME_CHECK(cudaMemcpy(buffers_[i].data(), values.data(), buffers_[i].size_bytes(),
                                cudaMemcpyDefault) == cudaSuccess);
    }
    const absl::Status status = graphs.Run(Ops(), *plans_, stream_.get());
    EXPECT_TRUE(status.ok()) << status;
    SELFSAME_CHECK(cudaStreamSynchronize(stream_.get()) == cudaSuccess);
    std::vector<BFloat16> all;
    for (size_t i = 0; i < kPlaces; ++i) {
      std::vector<BFloat16> values(kSizes[i]);
      SELFSAME_CHECK(cudaMemcpy(values.data(), buffers_[i].data(), buffers_[i].size_bytes(),
                                cudaMemcpyDefault) == cudaSuccess);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  testing::TempDir dir_;
  Stream stream_;
  std::optional<GemmPlans> plans_;
  std::array<Memory, kPlaces> buffers_;
};

TEST_F(ProductGraphsTest, AReplayedListWithProductsReadsTheNewContents) {
  PassGraphs graphs;
  std::vector<BFloat16> last;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    PassGraphs fresh;
    const auto expected = Run(seed, fresh);
    const auto got = Run(seed, graphs);
    EXPECT_EQ(CountDifferent(got, expected), 0u) << seed;
    EXPECT_EQ(fresh.replay_count(), 0u);
    EXPECT_EQ(graphs.replay_count(), seed - 1);
    if (!last.empty()) {
      const size_t out = kSizes[kOut];
      EXPECT_GT(CountDifferent(std::span(got).last(out), std::span(last).last(out)), 0u);
    }
    last = got;
  }
}

TEST(RoundedRowsTest, StayWithinTheLimitAndAQuarter) {
  for (int32_t rows = 1; rows <= 2048; ++rows) {
    const int32_t rounded = RoundedRows(rows, 2048);
    ASSERT_GE(rounded, rows);
    ASSERT_LE(rounded * 4, rows * 5);
  }
  EXPECT_EQ(RoundedRows(97, 100), 100);
  EXPECT_EQ(RoundedRows(0, 100), 0);
}

}  // namespace
}  // namespace selfsame::cuda
