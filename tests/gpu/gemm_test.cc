#include <algorithm>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/gemm_search.h"
#include "tests/gpu/gpu_testing.h"

namespace selfsame::testing {
namespace {

constexpr int32_t kMaxRows = 512;

struct Shape {
  int64_t n;
  int64_t k;
};

std::vector<double> Reference(std::span<const BFloat16> x, std::span<const BFloat16> w,
                              const Shape& shape, int32_t rows) {
  std::vector<double> y;
  for (int32_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < shape.n; ++i) {
      double sum = 0.0;
      for (int64_t j = 0; j < shape.k; ++j) {
        sum += static_cast<double>(ToFloat(x[static_cast<size_t>(row * shape.k + j)])) *
               ToFloat(w[static_cast<size_t>(i * shape.k + j)]);
      }
      y.push_back(sum);
    }
  }
  return y;
}

// A weight matrix and more input rows than a pass has, so that passes can start at any of them.
class Product {
 public:
  Product(Ops& ops, const Shape& shape, bool has_bias = false)
      : ops_(ops),
        shape_(shape),
        weights_(RandomRows(21, shape.n * shape.k)),
        inputs_(RandomRows(22, 2 * kMaxRows * shape.k)),
        matrix_(Pack(ops, weights_, shape.n, shape.k)),
        x_(Upload(ops, inputs_)),
        bias_(Upload(ops, RandomRows(23, shape.n))),
        has_bias_(has_bias) {}

  std::vector<BFloat16> Run(int32_t first_row, int32_t rows) {
    const std::vector<BFloat16> poison(static_cast<size_t>(kMaxRows * shape_.n), kPoison);
    const auto y = Upload(ops_, poison);
    const PlainPass plain(rows);
    ops_.BeginPass(plain.pass);
    ops_.Gemm(Rows(x_) + first_row * shape_.k, rows, *matrix_, has_bias_ ? Rows(bias_) : nullptr,
              Rows(y));
    const absl::Status status = ops_.EndPass();
    EXPECT_TRUE(status.ok()) << status;
    return Download<BFloat16>(ops_, y->data(), static_cast<size_t>(rows * shape_.n));
  }

  std::vector<float> RunLogits(int32_t first_row, int32_t rows) {
    const auto y = Upload(ops_, std::vector<float>(static_cast<size_t>(kMaxRows * shape_.n)));
    ops_.Logits(Rows(x_) + first_row * shape_.k, rows, *matrix_, static_cast<float*>(y->data()));
    return Download<float>(ops_, y->data(), static_cast<size_t>(rows * shape_.n));
  }

  // Overwrites input rows from `first_row` on with NaN.
  void Poison(int32_t first_row) {
    const size_t count = static_cast<size_t>((2 * kMaxRows - first_row) * shape_.k);
    const std::vector<BFloat16> poison(count, kPoison);
    ops_.CopyToDevice(Rows(x_) + first_row * shape_.k, poison.data(), count * sizeof(BFloat16));
  }

  std::span<const BFloat16> weights() const { return weights_; }
  std::span<const BFloat16> inputs(int32_t first_row) const {
    return std::span(inputs_).subspan(static_cast<size_t>(first_row * shape_.k));
  }
  std::vector<BFloat16> bias() {
    return Download<BFloat16>(ops_, bias_->data(), static_cast<size_t>(shape_.n));
  }

 private:
  Ops& ops_;
  Shape shape_;
  std::vector<BFloat16> weights_;
  std::vector<BFloat16> inputs_;
  std::unique_ptr<PackedMatrix> matrix_;
  std::unique_ptr<DeviceBuffer> x_;
  std::unique_ptr<DeviceBuffer> bias_;
  bool has_bias_;
};

TEST(GemmTest, BothSchedulesMatchADoubleReference) {
  for (const Schedule schedule : {Schedule::kFast, Schedule::kCanonical}) {
    const auto ops = MakeCudaOps({.schedule = schedule, .max_rows = kMaxRows});
    for (const Shape shape :
         {Shape{576, 576}, Shape{200, 72}, Shape{960, 1536}, Shape{104, 2048}, Shape{104, 8192}}) {
      Product product(*ops, shape);
      for (const int32_t rows : {1, 3, 17, 100}) {
        const auto got = product.Run(5, rows);
        const auto reference = Reference(product.inputs(5), product.weights(), shape, rows);
        EXPECT_LT(RelativeError(ToDouble(got), reference), 3e-3)
            << "n " << shape.n << " k " << shape.k << " rows " << rows;
        const auto logits = product.RunLogits(5, rows);
        const std::vector<double> floats(logits.begin(), logits.end());
        // Tensor cores cut off what they add, so that the error grows with the length of the sum.
        EXPECT_LT(RelativeError(floats, reference),
                  2e-9 * static_cast<double>(std::max<int64_t>(shape.k, 2048)));
      }
    }
  }
}

TEST(GemmTest, ABiasIsAddedBeforeRounding) {
  const auto ops = MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = kMaxRows});
  for (const Shape shape : {Shape{768, 512}, Shape{104, 8192}}) {
    Product product(*ops, shape, /*has_bias=*/true);
    const int32_t rows = 9;
    auto reference = Reference(product.inputs(0), product.weights(), shape, rows);
    const auto bias = ToDouble(product.bias());
    for (size_t i = 0; i < reference.size(); ++i) reference[i] += bias[i % bias.size()];
    EXPECT_LT(RelativeError(ToDouble(product.Run(0, rows)), reference), 3e-3) << shape.k;
  }
}

std::vector<int32_t> EveryRungAndOthers() {
  std::vector<int32_t> counts = cuda::RungsFor(kMaxRows, Schedule::kCanonical);
  counts.insert(counts.end(), {1, 2, 7, 9, 31, 100, 129, 250, 511});
  return counts;
}

// Rows of the shapes of small and 8B models, in every rung, at several offsets. Those with k of
// 8192 or more are split.
TEST(GemmTest, CanonicalRowsHaveTheSameBitsInEveryRungAndSlot) {
  const auto ops = MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = kMaxRows});
  for (const Shape shape : {Shape{960, 576}, Shape{576, 1536}, Shape{48, 8192}, Shape{4096, 4096},
                            Shape{4096, 14336}}) {
    Product product(*ops, shape);
    const auto all = product.Run(0, kMaxRows);
    const auto all_logits = product.RunLogits(0, kMaxRows);
    for (const int32_t rows : EveryRungAndOthers()) {
      for (const int32_t first : {0, 1, 13, 77, kMaxRows - rows}) {
        const int32_t count = std::min(rows, kMaxRows - first);
        const auto from = static_cast<size_t>(first * shape.n);
        const auto size = static_cast<size_t>(count * shape.n);
        const auto got = product.Run(first, rows);
        EXPECT_EQ(CountDifferent(std::span(got).first(size), std::span(all).subspan(from, size)),
                  0u)
            << "n " << shape.n << " k " << shape.k << " rows " << rows << " at " << first;
      }
      EXPECT_EQ(CountDifferent(product.RunLogits(0, rows),
                               std::span(all_logits).first(static_cast<size_t>(rows * shape.n))),
                0u);
    }
  }
}

// The head of the 8B shape, whose weights are made on the device.
TEST(GemmTest, CanonicalLogitsOfALargeVocabularyHaveTheSameBitsInEveryRung) {
  constexpr Shape kHead = {128256, 4096};
  const auto ops =
      MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = 8, .max_logit_rows = kMaxRows});
  const SyntheticPart part = {
      .key = 24, .rows = kHead.n, .cols = kHead.k, .tensor_cols = kHead.k, .scale = 4e-7f};
  const auto matrix = ops->GenerateMatrix({&part, 1});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const auto x = Upload(*ops, RandomRows(25, 2 * kMaxRows * kHead.k));
  const auto y = ops->Allocate(sizeof(float) * static_cast<size_t>(kMaxRows * kHead.n));
  ASSERT_TRUE(y.ok()) << y.status();
  const auto run = [&](int32_t first, int32_t rows) {
    ops->Logits(Rows(x) + first * kHead.k, rows, **matrix, static_cast<float*>((*y)->data()));
    return Download<float>(*ops, (*y)->data(), static_cast<size_t>(rows * kHead.n));
  };
  const auto all = run(0, kMaxRows);
  const auto differences = [&](int32_t first, int32_t rows) {
    return CountDifferent(run(first, rows),
                          std::span(all).subspan(static_cast<size_t>(first * kHead.n),
                                                 static_cast<size_t>(rows * kHead.n)));
  };
  for (const int32_t rows : cuda::RungsFor(kMaxRows, Schedule::kCanonical)) {
    EXPECT_EQ(differences(0, rows), 0u) << rows << " rows";
  }
  for (const int32_t rows : {1, 7, 31, 65}) {
    EXPECT_EQ(differences(13, rows), 0u) << rows << " rows";
  }
}

TEST(GemmTest, PoisonedPaddingRowsChangeNothing) {
  const auto ops = MakeCudaOps({.schedule = Schedule::kCanonical, .max_rows = kMaxRows});
  for (const Shape shape : {Shape{1536, 576}, Shape{512, 8192}}) {
    Product product(*ops, shape);
    for (const int32_t rows : {100, 33, 5}) {
      const auto expected = product.Run(0, rows);
      product.Poison(rows);
      EXPECT_EQ(CountDifferent(product.Run(0, rows), expected), 0u) << shape.k << ' ' << rows;
    }
  }
}

// The control: the fastest algorithms, chosen without regard to the class, differ from the
// canonical ones somewhere. Were they all equal, the tests above would show nothing.
TEST(GemmTest, FastPlansChangeBitsWithTheRowCount) {
  const Shape shape = {4096, 4096};
  const auto fast =
      MakeCudaOps({.schedule = Schedule::kFast, .max_rows = kMaxRows, .class_slack = 0.0});
  Product product(*fast, shape);
  const auto all = product.Run(0, kMaxRows);
  size_t different = 0;
  for (const int32_t rows : {1, 8, 16, 32, 64, 128, 256}) {
    different += CountDifferent(product.Run(0, rows),
                                std::span(all).first(static_cast<size_t>(rows * shape.n)));
  }
  EXPECT_GT(different, 0u);
}

TEST(GemmTest, PlansAreKeptInAFileAndLoadedFromIt) {
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / "selfsame_gemm_plans.json";
  std::filesystem::remove(path);
  const CudaOptions options = {
      .schedule = Schedule::kCanonical, .max_rows = kMaxRows, .plan_file = path.string()};
  std::vector<BFloat16> first;
  {
    const auto ops = MakeCudaOps(options);
    Product product(*ops, {960, 576});
    first = product.Run(0, 40);
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  const auto written = std::filesystem::last_write_time(path);
  {
    const auto ops = MakeCudaOps(options);
    Product product(*ops, {960, 576});
    EXPECT_EQ(CountDifferent(product.Run(0, 40), first), 0u);
  }
  EXPECT_EQ(std::filesystem::last_write_time(path), written) << "plans were measured again";
  std::ofstream(path) << "{\"version\": 7}";
  const auto ops = MakeCudaOps(options);
  const auto matrix = Pack(*ops, RandomRows(1, 64 * 64), 64, 64);
  const auto x = Upload(*ops, RandomRows(2, kMaxRows * 64));
  const PlainPass plain(1);
  ops->BeginPass(plain.pass);
  ops->Gemm(Rows(x), 1, *matrix, nullptr, Rows(x));
  EXPECT_THAT(std::string(ops->EndPass().message()), ::testing::HasSubstr(path.string()));
}

}  // namespace
}  // namespace selfsame::testing
