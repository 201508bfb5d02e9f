// Split matrix products: what they compute, bit by bit, and that another order is found out.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/gemm_bench.h"
#include "kernels/cuda/gemm_search.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/split_sum.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {
namespace {

using cuda::GemmAlgorithm;
using cuda::GemmShape;

constexpr GemmShape kDown = {.n = 4096, .k = 14336};
constexpr int32_t kMaxRows = 512;
constexpr int kCandidates = 24;

std::vector<float> RandomFloats(uint64_t seed, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = PseudoNormal(seed, i);
  return values;
}

cuda::SplitProduct ProductOf(const std::unique_ptr<DeviceBuffer>& partials, int32_t splits,
                             size_t slice_size) {
  return {.partials = static_cast<const float*>(partials->data()),
          .splits = splits,
          .slice_size = static_cast<int64_t>(slice_size)};
}

TEST(GemmTest, PartialProductsAreAddedInIncreasingOrderThenTheBiasAndRoundedOnce) {
  const auto ops = MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = 8});
  constexpr int32_t kRows = 5;
  constexpr int64_t kWidth = 516;  // the last block is not full
  const size_t count = kRows * kWidth;
  const auto bias = RandomRows(3, kWidth);
  const auto bias_on_device = Upload(*ops, bias);
  for (const int32_t splits : {2, 3, 4}) {
    const auto partials = RandomFloats(7, static_cast<size_t>(splits) * count);
    std::vector<float> sums(partials.begin(), partials.begin() + static_cast<int64_t>(count));
    for (size_t i = count; i < partials.size(); ++i) sums[i % count] += partials[i];
    const auto partials_on_device = Upload(*ops, partials);
    for (const bool has_bias : {false, true}) {
      std::vector<float> floats = sums;
      for (size_t i = 0; has_bias && i < count; ++i) floats[i] += ToFloat(bias[i % kWidth]);
      std::vector<BFloat16> narrow(count);
      std::transform(floats.begin(), floats.end(), narrow.begin(), ToBFloat16);
      const auto y = Upload(*ops, std::vector<float>(count));
      cuda::SplitSumArgs args = {.product = ProductOf(partials_on_device, splits, count),
                                 .bias = has_bias ? Rows(bias_on_device) : nullptr,
                                 .y = y->data(),
                                 .is_float = true,
                                 .n = kWidth};
      ASSERT_EQ(cuda::RunSplitSum(args, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(CountDifferent(Download<float>(*ops, y->data(), count), floats), 0u) << splits;
      args.is_float = false;
      ASSERT_EQ(cuda::RunSplitSum(args, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(CountDifferent(Download<BFloat16>(*ops, y->data(), count), narrow), 0u) << splits;
    }
  }
}

TEST(GemmTest, ANormThatAddsSlicesHasTheBitsOfTheirSumAndTheNorm) {
  const auto ops = MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = 8});
  constexpr int32_t kRows = 5;
  for (const int32_t width : {8, 2056, 4096, 8200, 10240}) {
    const auto count = static_cast<size_t>(kRows) * static_cast<size_t>(width);
    const auto weight = Upload(*ops, RandomRows(4, width));
    const auto first_residual = RandomRows(5, static_cast<int64_t>(count));
    const std::vector<BFloat16> poison(count, kPoison);
    for (const int32_t splits : {2, 3, 4}) {
      const auto partials = Upload(*ops, RandomFloats(8, static_cast<size_t>(splits) * count));
      const cuda::SplitProduct product = ProductOf(partials, splits, count);
      const auto run = [&](bool is_joined) {
        const auto x = Upload(*ops, poison);
        const auto residual = Upload(*ops, first_residual);
        const auto out = Upload(*ops, poison);
        if (!is_joined) {
          const cuda::SplitSumArgs sum = {
              .product = product, .bias = nullptr, .y = x->data(), .is_float = false, .n = width};
          EXPECT_EQ(cuda::RunSplitSum(sum, nullptr), cudaSuccess);
        }
        const cuda::RmsNormArgs norm = {.x = Rows(x),
                                        .product = is_joined ? product : cuda::SplitProduct{},
                                        .residual = Rows(residual),
                                        .weight = Rows(weight),
                                        .out = Rows(out),
                                        .epsilon = 1e-5f,
                                        .rows = kRows,
                                        .width = width};
        EXPECT_EQ(cuda::RunRmsNorm(norm, nullptr), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        return std::pair(Download<BFloat16>(*ops, residual->data(), count),
                         Download<BFloat16>(*ops, out->data(), count));
      };
      const auto [residual, out] = run(false);
      const auto [joined_residual, joined_out] = run(true);
      EXPECT_EQ(CountDifferent(joined_residual, residual), 0u) << width << " " << splits;
      EXPECT_EQ(CountDifferent(joined_out, out), 0u) << width << " " << splits;
      EXPECT_GT(CountDifferent(residual, first_residual), 0u);
    }
  }
}

// In a pass, a norm takes over the sum of the product before it.
TEST(GemmTest, AProductAndItsNormHaveTheSameBitsTogetherAndApart) {
  constexpr int32_t kWidth = 1024;
  constexpr int64_t kDepth = 8192;
  constexpr int32_t kMost = 64;
  ASSERT_EQ(cuda::CanonicalSplits({.n = kWidth, .k = kDepth}), 2);
  const auto ops = MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = kMost});
  const auto matrix = Pack(*ops, RandomRows(32, kWidth * kDepth), kWidth, kDepth);
  const auto x = Upload(*ops, RandomRows(31, kMost * kDepth));
  const auto weight = Upload(*ops, RandomRows(33, kWidth));
  const auto first_residual = RandomRows(34, int64_t{kMost} * kWidth);
  for (const int32_t rows : {1, 5, 33, kMost}) {
    const auto count = static_cast<size_t>(rows) * kWidth;
    const std::vector<BFloat16> poison(static_cast<size_t>(kMost) * kWidth, kPoison);
    const auto y = Upload(*ops, poison);
    const auto out = Upload(*ops, poison);
    const auto run = [&](bool is_together) {
      const auto residual = Upload(*ops, first_residual);
      const PlainPass plain(rows);
      ops->BeginPass(plain.pass);
      ops->Gemm(Rows(x), rows, *matrix, nullptr, Rows(y));
      if (!is_together) {
        EXPECT_TRUE(ops->EndPass().ok());
        ops->BeginPass(plain.pass);
      }
      ops->AddRmsNorm(Rows(residual), Rows(y), Rows(weight), 1e-5f, rows, kWidth, Rows(out));
      EXPECT_TRUE(ops->EndPass().ok());
      return std::pair(Download<BFloat16>(*ops, residual->data(), count),
                       Download<BFloat16>(*ops, out->data(), count));
    };
    const auto [residual, normed] = run(true);
    const auto unwritten = Download<BFloat16>(*ops, y->data(), count);
    EXPECT_EQ(CountDifferent(unwritten, std::vector<BFloat16>(count, kPoison)), 0u)
        << "the sum was not taken over";
    const auto [residual_apart, normed_apart] = run(false);
    EXPECT_EQ(CountDifferent(residual, residual_apart), 0u) << rows;
    EXPECT_EQ(CountDifferent(normed, normed_apart), 0u) << rows;
  }
}

TEST(GemmTest, ANormOfAnotherBufferLeavesTheProductBeforeItAlone) {
  constexpr int32_t kWidth = 1024;
  constexpr int64_t kDepth = 8192;
  constexpr int32_t kRows = 9;
  constexpr size_t kCount = size_t{kRows} * kWidth;
  const auto ops = MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = kRows});
  const auto matrix = Pack(*ops, RandomRows(32, kWidth * kDepth), kWidth, kDepth);
  const auto x = Upload(*ops, RandomRows(31, kRows * kDepth));
  const auto weight = Upload(*ops, RandomRows(33, kWidth));
  const auto added = RandomRows(35, int64_t{kRows} * kWidth);
  const auto added_on_device = Upload(*ops, added);
  const auto first_residual = RandomRows(34, int64_t{kRows} * kWidth);
  const auto residual = Upload(*ops, first_residual);
  const std::vector<BFloat16> poison(kCount, kPoison);
  const auto y = Upload(*ops, poison);
  const auto out = Upload(*ops, poison);
  const PlainPass plain(kRows);
  ops->BeginPass(plain.pass);
  ops->Gemm(Rows(x), kRows, *matrix, nullptr, Rows(y));
  ops->AddRmsNorm(Rows(residual), Rows(added_on_device), Rows(weight), 1e-5f, kRows, kWidth,
                  Rows(out));
  ASSERT_TRUE(ops->EndPass().ok());
  std::vector<BFloat16> sums;
  for (size_t i = 0; i < kCount; ++i) {
    sums.push_back(ToBFloat16(ToFloat(first_residual[i]) + ToFloat(added[i])));
  }
  EXPECT_EQ(CountDifferent(Download<BFloat16>(*ops, residual->data(), kCount), sums), 0u);
  const auto product = Download<BFloat16>(*ops, y->data(), kCount);
  EXPECT_TRUE(std::none_of(product.begin(), product.end(),
                           [](BFloat16 value) { return value.bits == kPoison.bits; }));
}

std::vector<BFloat16> Columns(const std::vector<BFloat16>& matrix, int64_t width, int64_t first,
                              int64_t count) {
  std::vector<BFloat16> columns;
  for (size_t row = 0; row * static_cast<size_t>(width) < matrix.size(); ++row) {
    const auto begin = matrix.begin() + static_cast<int64_t>(row) * width + first;
    columns.insert(columns.end(), begin, begin + count);
  }
  return columns;
}

// The definition: each slice is an unsplit product, whose canonical order is one chain.
TEST(GemmTest, ASplitProductIsTheSumOfTheProductsOfItsSlices) {
  constexpr int64_t kOutputs = 1024;
  constexpr int64_t kDepth = 8192;
  constexpr int32_t kRows = 64;
  ASSERT_EQ(cuda::CanonicalSplits({.n = kOutputs, .k = kDepth}), 2);
  ASSERT_EQ(cuda::CanonicalSplits({.n = kOutputs, .k = kDepth / 2}), 1);
  const auto ops =
      MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = kRows, .max_logit_rows = kRows});
  const auto x = RandomRows(31, kRows * kDepth);
  const auto w = RandomRows(32, kOutputs * kDepth);
  const auto product = [&](int64_t first, int64_t depth) {
    const auto matrix = Pack(*ops, Columns(w, kDepth, first, depth), kOutputs, depth);
    const auto rows = Upload(*ops, Columns(x, kDepth, first, depth));
    const auto y = Upload(*ops, std::vector<float>(kRows * kOutputs));
    ops->Logits(Rows(rows), kRows, *matrix, static_cast<float*>(y->data()));
    return Download<float>(*ops, y->data(), kRows * kOutputs);
  };
  const auto whole = product(0, kDepth);
  auto sums = product(0, kDepth / 2);
  const auto second = product(kDepth / 2, kDepth / 2);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += second[i];
  EXPECT_EQ(CountDifferent(whole, sums), 0u);
}

// A launcher and what it proposes for kDown.
class Launcher {
 public:
  Launcher()
      : stream_(Value(cuda::Stream::Create())),
        launcher_(Value(cuda::GemmLauncher::Create(stream_.get()))) {}

  std::vector<GemmAlgorithm> Propose(int32_t rows, int32_t splits) {
    SELFSAME_CHECK(launcher_.Reserve(kDown, splits, kMaxRows).ok());
    return launcher_.Propose(kDown, rows, splits, kCandidates);
  }

  cuda::GemmLauncher& get() { return launcher_; }

 private:
  cuda::Stream stream_;
  cuda::GemmLauncher launcher_;
};

TEST(GemmTest, OtherSplitCountsAreOtherClasses) {
  Launcher launcher;
  const auto members = launcher.Propose(kMaxRows, 2);
  ASSERT_FALSE(members.empty());
  auto bench = cuda::GemmBench::Create(launcher.get(), kDown, kMaxRows);
  ASSERT_TRUE(bench.ok());
  const auto reference = bench->Classify(members[0], kMaxRows);
  ASSERT_TRUE(reference.ok() && reference->has_value());
  for (const int32_t rows : {512, 64, 8}) {
    int member_count = 0;
    for (const GemmAlgorithm& algorithm : launcher.Propose(rows, 2)) {
      const auto is_member = bench->IsMember(algorithm, rows, **reference);
      ASSERT_TRUE(is_member.ok());
      member_count += *is_member ? 1 : 0;
    }
    EXPECT_GT(member_count, 0) << rows;
    for (const int32_t splits : {1, 4}) {
      const auto others = launcher.Propose(rows, splits);
      EXPECT_FALSE(others.empty());
      for (const GemmAlgorithm& algorithm : others) {
        const auto is_member = bench->IsMember(algorithm, rows, **reference);
        ASSERT_TRUE(is_member.ok());
        EXPECT_FALSE(*is_member) << rows << " rows, " << splits << " slices";
      }
    }
  }
}

TEST(GemmTest, AnAlgorithmWithoutRoomForItsPartialsDoesNotRun) {
  Launcher launcher;
  const auto members = launcher.get().Propose(kDown, kMaxRows, 2, kCandidates);
  ASSERT_FALSE(members.empty());
  auto bench = cuda::GemmBench::Create(launcher.get(), kDown, kMaxRows);
  ASSERT_TRUE(bench.ok());
  const auto without_room = bench->Time({&members[0], 1}, kMaxRows);
  ASSERT_TRUE(without_room.ok());
  EXPECT_FALSE(without_room->front().has_value());
  ASSERT_TRUE(launcher.get().Reserve(kDown, 2, kMaxRows).ok());
  const auto with_room = bench->Time({&members[0], 1}, kMaxRows);
  ASSERT_TRUE(with_room.ok());
  EXPECT_TRUE(with_room->front().has_value());
}

TEST(GemmTest, PlansThatChangeTheOrderAreFoundOut) {
  Launcher launcher;
  const cuda::GemmSearchOptions options = {
      .schedule = Schedule::kCanonical, .class_slack = 0.0, .rungs = {8, 64, 512}};
  auto plans = cuda::SearchPlans(launcher.get(), kDown, options);
  ASSERT_TRUE(plans.ok()) << plans.status();
  for (const cuda::GemmPlan& plan : *plans) EXPECT_EQ(plan.algorithm.splits, 2) << plan.rows;
  const auto holds = cuda::ProvePlans(launcher.get(), kDown, options, *plans);
  ASSERT_TRUE(holds.ok());
  EXPECT_TRUE(*holds);
  for (const int32_t splits : {1, 4}) {
    auto changed = *plans;
    changed[1].algorithm = launcher.Propose(changed[1].rows, splits).at(0);
    const auto still_holds = cuda::ProvePlans(launcher.get(), kDown, options, changed);
    ASSERT_TRUE(still_holds.ok());
    EXPECT_FALSE(*still_holds) << splits;
  }
  // Their bits are equal, but not those of other replicas.
  auto quartered = *plans;
  for (auto& plan : quartered) plan.algorithm = launcher.Propose(plan.rows, 4).at(0);
  const auto quartered_holds = cuda::ProvePlans(launcher.get(), kDown, options, quartered);
  ASSERT_TRUE(quartered_holds.ok());
  EXPECT_FALSE(*quartered_holds);
}

// Unsplit plans may be those of a device without a class of slices: their bits alone tell an
// algorithm of another order.
TEST(GemmTest, AnUnsplitPlanOfAnotherOrderIsFoundOut) {
  Launcher launcher;
  auto bench = cuda::GemmBench::Create(launcher.get(), kDown, kMaxRows);
  ASSERT_TRUE(bench.ok());
  const auto reference = bench->Classify(launcher.Propose(kMaxRows, 1).at(0), kMaxRows);
  ASSERT_TRUE(reference.ok() && reference->has_value());
  std::vector<cuda::GemmPlan> plans;
  std::vector<GemmAlgorithm> others;  // at 64 rows
  for (const int32_t rows : {8, 64, kMaxRows}) {
    std::optional<GemmAlgorithm> member;
    auto algorithms = launcher.Propose(rows, 1);
    const auto split_by_the_library = launcher.Propose(rows, cuda::kAnyOrder);
    algorithms.insert(algorithms.end(), split_by_the_library.begin(), split_by_the_library.end());
    for (const GemmAlgorithm& algorithm : algorithms) {
      const auto is_member = bench->IsMember(algorithm, rows, **reference);
      ASSERT_TRUE(is_member.ok());
      if (*is_member && !member.has_value()) member = algorithm;
      if (!*is_member && rows == 64) others.push_back(algorithm);
    }
    ASSERT_TRUE(member.has_value()) << rows;
    plans.push_back({.rows = rows, .algorithm = *member, .is_in_class = true});
  }
  const cuda::GemmSearchOptions options = {
      .schedule = Schedule::kCanonical, .class_slack = 0.0, .rungs = {8, 64, kMaxRows}};
  const auto holds = cuda::ProvePlans(launcher.get(), kDown, options, plans);
  ASSERT_TRUE(holds.ok());
  EXPECT_TRUE(*holds);
  EXPECT_FALSE(others.empty());
  for (const GemmAlgorithm& other : others) {
    plans[1].algorithm = other;
    const auto still_holds = cuda::ProvePlans(launcher.get(), kDown, options, plans);
    ASSERT_TRUE(still_holds.ok());
    EXPECT_FALSE(*still_holds);
  }
}

}  // namespace
}  // namespace selfsame::testing
