// Floors of the other benchmarks: read bandwidth, and the cost of a fork and join.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/thread_pool.h"

namespace selfsame {
namespace {

constexpr int64_t kBufferBytes = int64_t{256} << 20;
constexpr int64_t kPieceBytes = 64 << 10;

uint64_t SumWords(const uint64_t* words, int64_t count) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  return std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
}

void BM_ReadBandwidth(benchmark::State& state) {
  cpu::ThreadPool pool(static_cast<int>(state.range(0)));
  const auto memory = *cpu::MappedMemory::Create(kBufferBytes);
  std::fill_n(memory->data(), kBufferBytes, std::byte{1});
  for (auto _ : state) {
    pool.Run(kBufferBytes / kPieceBytes, [&](int piece, int) {
      const auto* words = reinterpret_cast<const uint64_t*>(memory->data() + piece * kPieceBytes);
      benchmark::DoNotOptimize(SumWords(words, kPieceBytes / 8));
    });
  }
  state.SetBytesProcessed(state.iterations() * kBufferBytes);
}
BENCHMARK(BM_ReadBandwidth)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

void BM_ForkJoin(benchmark::State& state) {
  cpu::ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) pool.Run(2, [](int, int) {});
}
BENCHMARK(BM_ForkJoin)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace selfsame
