// Choosing a token for each of several rows of 49152 logits.

#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "bench/kernels/bench_data.h"

namespace selfsame {
namespace {

constexpr int32_t kVocab = 49152;

// Logits with a long tail, as a model's are: a few tokens stand out.
std::vector<float> MakeLogits(int32_t rows) {
  std::vector<float> logits(int64_t{rows} * kVocab);
  uint64_t state = 7;
  for (float& logit : logits) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float u = (static_cast<float>(state >> 40) + 0.5f) * 0x1p-24f;
    logit = -2.0f * std::log(-std::log(u));
  }
  return logits;
}

// Args: rows, threads, setting (0 greedy, 1 temperature 1, 2 top-k 50, 3 top-p 0.95, 4 both).
void BM_Sample(benchmark::State& state) {
  const auto rows = static_cast<int32_t>(state.range(0));
  const auto ops = bench::MakeOps(Schedule::kFast, static_cast<int>(state.range(1)));
  const int64_t setting = state.range(2);
  SampleRow row;
  row.temperature = setting == 0 ? 0.0f : 1.0f;
  row.top_k = setting == 2 || setting == 4 ? 50 : 0;
  row.top_p = setting >= 3 ? 0.95f : 1.0f;
  std::vector<SampleRow> params(rows, row);
  std::vector<SampledToken> out(rows);
  const std::vector<float> logits = MakeLogits(rows);
  for (auto _ : state) {
    for (SampleRow& each : params) ++each.position;
    ops->Sample(logits.data(), kVocab, params, out);
  }
}
BENCHMARK(BM_Sample)
    ->ArgNames({"rows", "threads", "setting"})
    ->ArgsProduct({{1, 8}, {1, 2}, {0, 1, 2, 3, 4}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace selfsame
