// Attention of one layer in the shape of SmolLM2-135M (9 query heads, 3 key heads, 64 dimensions).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>

#include "bench/kernels/bench_data.h"

namespace selfsame {
namespace {

// Args: canonical (0 or 1), threads, sequences, rows of each, positions already cached.
void BM_Attention(benchmark::State& state) {
  const auto schedule = state.range(0) != 0 ? Schedule::kCanonical : Schedule::kFast;
  const auto ops = bench::MakeOps(schedule, static_cast<int>(state.range(1)));
  const auto sequence_count = static_cast<int32_t>(state.range(2));
  const auto rows_each = static_cast<int32_t>(state.range(3));
  const auto cached = static_cast<int32_t>(state.range(4));
  const AttentionShape shape = {9, 3, 64};
  const bench::PagedSequences sequences(sequence_count, rows_each, cached);
  auto kv = bench::RandomBFloat16(int64_t{2} * shape.kv_head_count * kKvBlockTokens *
                                  shape.head_dim * sequences.block_count());
  const int32_t rows = sequence_count * rows_each;
  const auto qkv = bench::RandomBFloat16(int64_t{rows} * shape.qkv_width());
  std::vector<BFloat16> out(int64_t{rows} * shape.output_width());
  ops->BeginPass(sequences.pass());
  for (auto _ : state) {
    ops->Attention(shape, qkv.data(), {kv.data()}, out.data());
    benchmark::ClobberMemory();
  }
  benchmark::DoNotOptimize(ops->EndPass());
  const double keys = rows_each * (cached + (rows_each + 1) / 2.0);
  const double flops = 4.0 * sequence_count * shape.output_width() * keys;
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void AttentionArgs(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"canonical", "threads", "sequences", "rows", "cached"});
  for (const int64_t canonical : {0, 1}) {
    for (const int64_t threads : {1, 2}) {
      for (const int64_t cached : {32, 128, 512, 2048, 8000}) {
        benchmark->Args({canonical, threads, 1, 1, cached});
      }
      benchmark->Args({canonical, threads, 8, 1, 128});
      benchmark->Args({canonical, threads, 8, 1, 1024});
      benchmark->Args({canonical, threads, 8, 16, 128});
      benchmark->Args({canonical, threads, 1, 64, 448});
      benchmark->Args({canonical, threads, 1, 512, 0});
      benchmark->Args({canonical, threads, 1, 512, 1536});
    }
  }
}
BENCHMARK(BM_Attention)->Apply(AttentionArgs)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace selfsame
