// Lists of ops that come again run as graphs, on what is then in their buffers.

#include "kernels/cuda/pass_graphs.h"

#include <optional>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::cuda {
namespace {

using testing::CountDifferent;
using testing::RandomRows;

constexpr int32_t kRows = 5;
constexpr int32_t kWidth = 96;

class PassGraphsTest : public ::testing::Test {
 protected:
  PassGraphsTest() {
    auto stream = Stream::Create();
    SELFSAME_CHECK(stream.ok());
    stream_.emplace(*std::move(stream));
    auto launcher = GemmLauncher::Create(stream_->get());
    SELFSAME_CHECK(launcher.ok());
    plans_.emplace(
        *std::move(launcher),
        GemmPlansOptions{.max_rows = 8, .max_logit_rows = 8, .plan_file = {}, .scope = {}});
    auto memory = Memory::Create(size_t{4} * kRows * kWidth * sizeof(BFloat16));
    SELFSAME_CHECK(memory.ok());
    memory_ = *std::move(memory);
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
