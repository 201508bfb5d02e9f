// GEMM kernels on one thread and through the thread pool. `cold` cycles through enough copies of
// the weights that each call reads them from memory; otherwise they stay in the caches.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "bench/kernels/bench_data.h"
#include "kernels/cpu/fast_plan.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_bf16_dot.h"
#include "kernels/cpu/packed_matrix.h"

namespace selfsame {
namespace {

constexpr int64_t kColdBytes = int64_t{256} << 20;

// The number by which the benchmark names a plan.
int KernelNumber(const cpu::GemmPlan& plan) {
  switch (plan.kernel) {
    case cpu::GemmKernel::kCanonical:
      return 0;
    case cpu::GemmKernel::kFewRows:
      return -plan.chains;
    case cpu::GemmKernel::kBf16Dot:
      return plan.chains;
  }
  return 0;
}

// Args: kernel (chains of the bf16 dot product; 0 canonical; -2 and -4 chains of multiply-adds),
// rows, n, k, cold. The
// label marks the one that the fast schedule takes for these rows on this CPU.
void BM_GemmKernel(benchmark::State& state) {
  const auto kernel = static_cast<int>(state.range(0));
  const auto rows = static_cast<int32_t>(state.range(1));
  const int64_t n = state.range(2);
  const int64_t k = state.range(3);
  if (kernel > 0 && !cpu::HasBf16Dot()) {
    state.SkipWithError("this CPU has no bf16 dot product");
    return;
  }
  if (kernel ==
      KernelNumber(cpu::PlanGemm(Schedule::kFast, rows, k, cpu::HasBf16Dot(), cpu::GemmLanes()))) {
    state.SetLabel("chosen");
  }
  const auto ops = bench::MakeOps(Schedule::kFast, 1);
  const int64_t copies = state.range(4) != 0 ? std::max<int64_t>(1, kColdBytes / (n * k * 2)) : 1;
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  for (int64_t i = 0; i < copies; ++i) matrices.push_back(bench::RandomMatrix(*ops, n, k));
  const auto x = bench::RandomBFloat16(rows * k);
  const int64_t stride = k + 16;
  std::vector<float> widened(rows * stride);
  cpu::WidenRows(x.data(), 0, rows, k, stride, widened.data());
  std::vector<BFloat16> y(rows * n);
  size_t next = 0;
  for (auto _ : state) {
    const auto& w = static_cast<const cpu::CpuPackedMatrix&>(*matrices[next]);
    next = (next + 1) % matrices.size();
    const cpu::GemmOutput out = {y.data(), nullptr, nullptr};
    // Blocks of 64 rows, as a pass would cut them.
    for (int32_t row = 0; row < rows; row += 64) {
      const cpu::GemmRange range = {row, std::min(rows, row + 64), 0, w.panel_count()};
      if (kernel == 0) {
        cpu::GemmCanonical(widened.data(), stride, w, range, out);
      } else if (kernel < 0) {
        cpu::GemmFewRows(widened.data(), stride, w, range, -kernel, out);
      } else {
        cpu::GemmBf16Dot(x.data(), w, range, kernel, out);
      }
    }
    benchmark::ClobberMemory();
  }
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(n * k);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["weights GB/s"] = benchmark::Counter(
      static_cast<double>(n * k * 2) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void KernelArgs(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"kernel", "rows", "n", "k", "cold"});
  for (const int64_t cold : {0, 1}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{576, 576}, {3072, 576}, {576, 1536}}) {
      for (const int64_t rows : {1, 2, 4, 8, 16, 64, 512}) {
        if (cold != 0 && rows > 16) continue;
        for (const int64_t kernel : {0, -2, -4, 1, 2, 4}) {
          if (kernel > 1 && rows * kernel > 8) continue;
          if (kernel < 0 && rows * -kernel > 4) continue;
          benchmark->Args({kernel, rows, n, k, cold});
        }
      }
    }
  }
}
BENCHMARK(BM_GemmKernel)->Apply(KernelArgs);

}  // namespace
}  // namespace selfsame
