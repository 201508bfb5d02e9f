// Floors of the other benchmarks: read bandwidth, and the cost of a fork and join.

#include <benchmark/benchmark.h>

#include "bench/engine/read_bandwidth.h"
#include "kernels/cpu/thread_pool.h"

namespace selfsame {
namespace {

void BM_ReadBandwidth(benchmark::State& state) {
  for (auto _ : state) {
    const auto bytes_per_second = bench::MeasureReadBandwidth(static_cast<int>(state.range(0)));
    if (!bytes_per_second.ok()) {
      state.SkipWithError("the memory could not be had");
      return;
    }
    state.counters["GB/s"] = *bytes_per_second * 1e-9;
  }
}
BENCHMARK(BM_ReadBandwidth)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

void BM_ForkJoin(benchmark::State& state) {
  cpu::ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) pool.Run(2, [](int, int) {});
}
BENCHMARK(BM_ForkJoin)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace selfsame
