// One forward pass in the shapes of SmolLM2-135M (random weights): decode of 1 to 64 sequences, a
// verification pass and a prefill, under both schedules. `GB/s` counts the weights, read once a
// pass; compare it with the ReadBandwidth benchmarks.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "bench/kernels/bench_data.h"
#include "kernels/cpu/cpu_ops.h"

namespace selfsame {
namespace {

constexpr int32_t kLayers = 30;
constexpr int32_t kHidden = 576;
constexpr int32_t kFfn = 1536;
constexpr int32_t kVocab = 49152;
constexpr AttentionShape kShape = {9, 3, 64};
constexpr int32_t kMaxPositions = 8192;

struct Layer {
  std::unique_ptr<PackedMatrix> qkv, o, gate_up, down;
};

class Model {
 public:
  Model(Schedule schedule, int threads) {
    ops = bench::MakeOps(schedule, threads);
    const auto pack = [&](int64_t n, int64_t k) { return bench::RandomMatrix(*ops, n, k); };
    embedding = pack(kVocab, kHidden);
    for (int32_t i = 0; i < kLayers; ++i) {
      layers.push_back({pack(kShape.qkv_width(), kHidden), pack(kHidden, kHidden),
                        pack(2 * kFfn, kHidden), pack(kHidden, kFfn)});
    }
    norm = bench::RandomBFloat16(kHidden);
    table.assign(kMaxPositions * kShape.head_dim / 2, 0.7071f);
  }

  void Step(const Pass& pass, const std::vector<KvLayer>& kv, bench::Activations& a) {
    const int32_t rows = pass.row_count;
    const auto logit_rows = static_cast<int32_t>(pass.logit_rows.size());
    ops->BeginPass(pass);
    ops->Embed(*embedding, a.residual);
    ops->RmsNorm(a.residual, norm.data(), 1e-5f, rows, kHidden, a.normal);
    for (int32_t i = 0; i < kLayers; ++i) {
      const Layer& layer = layers[i];
      ops->Gemm(a.normal, rows, *layer.qkv, nullptr, a.wide);
      ops->RopeAndStoreKv(kShape, nullptr, {table.data(), table.data(), kMaxPositions}, a.wide,
                          kv[i]);
      ops->Attention(kShape, a.wide, kv[i], a.mixed);
      ops->Gemm(a.mixed, rows, *layer.o, nullptr, a.normal);
      ops->AddRmsNorm(a.residual, a.normal, norm.data(), 1e-5f, rows, kHidden, a.normal);
      ops->Gemm(a.normal, rows, *layer.gate_up, nullptr, a.wide);
      ops->SiluMul(a.wide, rows, kFfn, a.mixed);
      ops->Gemm(a.mixed, rows, *layer.down, nullptr, a.normal);
      ops->AddRmsNorm(a.residual, a.normal, norm.data(), 1e-5f, rows, kHidden, a.normal);
    }
    ops->GatherLogitRows(a.normal, kHidden, a.mixed);
    ops->Logits(a.mixed, logit_rows, *embedding, a.logits);
    benchmark::DoNotOptimize(ops->EndPass());
  }

  static int64_t WeightBytes() {
    const int64_t layer = int64_t{kHidden} * (kShape.qkv_width() + kHidden + 3 * kFfn);
    return 2 * (kLayers * layer + int64_t{kVocab} * kHidden);
  }

  std::unique_ptr<Ops> ops;
  std::unique_ptr<PackedMatrix> embedding;
  std::vector<Layer> layers;
  std::vector<BFloat16> norm;
  std::vector<float> table;
};

// Args: canonical (0 or 1), threads, sequences, rows of each, positions already cached.
void BM_ModelStep(benchmark::State& state) {
  const auto schedule = state.range(0) != 0 ? Schedule::kCanonical : Schedule::kFast;
  const auto sequence_count = static_cast<int32_t>(state.range(2));
  const auto rows_each = static_cast<int32_t>(state.range(3));
  const auto cached = static_cast<int32_t>(state.range(4));
  static std::unique_ptr<Model> model;
  static std::pair<int64_t, int64_t> model_key = {-1, -1};
  if (model_key != std::pair{state.range(0), state.range(1)}) {
    model.reset();
    model = std::make_unique<Model>(schedule, static_cast<int>(state.range(1)));
    model_key = {state.range(0), state.range(1)};
  }

  bench::PagedSequences sequences(sequence_count, rows_each, cached);
  const int64_t block_elements = int64_t{2} * kShape.kv_head_count * 16 * kShape.head_dim;
  const int64_t layer_elements = block_elements * sequences.block_count();
  auto kv_buffer = *model->ops->Allocate(layer_elements * kLayers * sizeof(BFloat16));
  std::vector<KvLayer> kv(kLayers);
  for (int32_t i = 0; i < kLayers; ++i) {
    kv[i].data = static_cast<BFloat16*>(kv_buffer->data()) + i * layer_elements;
  }
  bench::Activations activations(*model->ops, sequence_count * rows_each, 2 * kFfn, sequence_count,
                                 kVocab);
  for (auto _ : state) model->Step(sequences.pass(), kv, activations);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(Model::WeightBytes()) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tok/s"] =
      benchmark::Counter(sequence_count * rows_each, benchmark::Counter::kIsIterationInvariantRate);
}

void StepArgs(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"canonical", "threads", "sequences", "rows", "cached"});
  for (const int64_t canonical : {0, 1}) {
    for (const int64_t threads : {1, 2}) {
      for (const int64_t sequences : {1, 2, 4, 8, 16}) {
        benchmark->Args({canonical, threads, sequences, 1, 128});
      }
      benchmark->Args({canonical, threads, 1, 1, 2048});
      benchmark->Args({canonical, threads, 8, 1, 1024});
      benchmark->Args({canonical, threads, 8, 16, 128});
      benchmark->Args({canonical, threads, 1, 512, 0});
    }
  }
}
BENCHMARK(BM_ModelStep)->Apply(StepArgs)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace selfsame
