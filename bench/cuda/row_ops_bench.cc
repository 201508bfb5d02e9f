// Times the operations on rows in the shapes of Llama-3.1-8B, beside the time that their bytes take
// at 4.3 TB/s: 20 launches in one graph, median of 15 runs, microseconds a launch. The data of few
// rows is in the device's cache, as it is in a pass. Prints Markdown tables.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "common/errors.h"
#include "common/process/flags.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/sample_buffers.h"
#include "kernels/cuda/sampling.h"

namespace selfsame::bench {
namespace {

using cuda::Memory;

constexpr int32_t kMaxRows = 512;
constexpr int32_t kHidden = 4096;
constexpr int32_t kIntermediate = 14336;
constexpr int32_t kVocab = 128256;
constexpr AttentionShape kShape = {.head_count = 32, .kv_head_count = 8, .head_dim = 128};
constexpr int32_t kPositions = 2048;
constexpr int kLaunches = 20;
constexpr int kRepetitions = 15;
constexpr double kBytesPerMicrosecond = 4.3e6;

using Launch = std::function<cudaError_t(cudaStream_t)>;

absl::StatusOr<double> MedianMicroseconds(cudaStream_t stream, const Launch& launch) {
  RETURN_IF_ERROR(cuda::ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                 "beginning a graph"));
  for (int i = 0; i < kLaunches; ++i) RETURN_IF_ERROR(cuda::ToStatus(launch(stream), "launching"));
  cudaGraph_t graph = nullptr;
  RETURN_IF_ERROR(cuda::ToStatus(cudaStreamEndCapture(stream, &graph), "ending a graph"));
  cudaGraphExec_t run = nullptr;
  RETURN_IF_ERROR(cuda::ToStatus(cudaGraphInstantiate(&run, graph, 0), "making a graph"));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  RETURN_IF_ERROR(cuda::ToStatus(cudaEventCreate(&begin), "making an event"));
  RETURN_IF_ERROR(cuda::ToStatus(cudaEventCreate(&end), "making an event"));
  std::vector<float> times;
  for (int i = 0; i < kRepetitions + 3; ++i) {
    static_cast<void>(cudaEventRecord(begin, stream));
    static_cast<void>(cudaGraphLaunch(run, stream));
    static_cast<void>(cudaEventRecord(end, stream));
    RETURN_IF_ERROR(cuda::ToStatus(cudaStreamSynchronize(stream), "running a graph"));
    float time_ms = 0.0f;
    static_cast<void>(cudaEventElapsedTime(&time_ms, begin, end));
    if (i >= 3) times.push_back(time_ms * 1000.0f / kLaunches);
  }
  static_cast<void>(cudaEventDestroy(begin));
  static_cast<void>(cudaEventDestroy(end));
  static_cast<void>(cudaGraphExecDestroy(run));
  static_cast<void>(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Nearly normal, variance 1.
float Noise(uint64_t& state) {
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    sum += static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
  }
  return sum * std::sqrt(0.75f);
}

template <typename T, typename Make>
absl::StatusOr<Memory> Fill(size_t count, const Make& make) {
  std::vector<T> values(count);
  for (T& value : values) value = make();
  ASSIGN_OR_RETURN(Memory memory, Memory::Create(count * sizeof(T)));
  RETURN_IF_ERROR(cuda::ToStatus(
      cudaMemcpy(memory.data(), values.data(), count * sizeof(T), cudaMemcpyHostToDevice),
      "copying"));
  return memory;
}

absl::StatusOr<Memory> RandomRows(int64_t width) {
  uint64_t state = 1;
  return Fill<BFloat16>(static_cast<size_t>(kMaxRows * width),
                        [&state] { return ToBFloat16(Noise(state)); });
}

absl::Status MeasureRowOps(cudaStream_t stream) {
  ASSIGN_OR_RETURN(const Memory x, RandomRows(kHidden));
  ASSIGN_OR_RETURN(const Memory residual, RandomRows(kHidden));
  ASSIGN_OR_RETURN(const Memory out, RandomRows(kIntermediate));
  ASSIGN_OR_RETURN(const Memory gate_up, RandomRows(int64_t{2} * kIntermediate));
  ASSIGN_OR_RETURN(const Memory qkv, RandomRows(kShape.qkv_width()));
  ASSIGN_OR_RETURN(const Memory kv, RandomRows(int64_t{2} * kShape.kv_head_count * kShape.head_dim *
                                               kKvBlockTokens));
  ASSIGN_OR_RETURN(const Memory angles, Fill<float>(size_t{kPositions} * 64, [] { return 0.7f; }));
  int32_t next = 0;
  ASSIGN_OR_RETURN(const Memory positions, Fill<int32_t>(kMaxRows, [&next] { return next++; }));
  std::printf("| rows | add and RMS norm | floor | RoPE, KV | floor | SiLU | floor |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int32_t rows : {1, 16, 64, 256, 512}) {
    const cuda::RmsNormArgs norm = {.x = x.data<BFloat16>(),
                                    .product = {},
                                    .residual = residual.data<BFloat16>(),
                                    .weight = x.data<BFloat16>(),
                                    .out = out.data<BFloat16>(),
                                    .epsilon = 1e-5f,
                                    .rows = rows,
                                    .width = kHidden};
    const cuda::RopeArgs rope = {.shape = kShape,
                                 .norm = {},
                                 .table = {angles.data<float>(), angles.data<float>(), kPositions},
                                 .positions = positions.data<int32_t>(),
                                 .kv_slots = positions.data<int32_t>(),
                                 .qkv = qkv.data<BFloat16>(),
                                 .kv = kv.data<BFloat16>(),
                                 .rows = rows};
    const struct {
      Launch launch;
      int64_t bytes;
    } ops[] = {
        {[&](cudaStream_t on) { return cuda::RunRmsNorm(norm, on); }, int64_t{8} * kHidden},
        {[&](cudaStream_t on) { return cuda::RunRopeAndStoreKv(rope, on); },
         int64_t{4} * kShape.qkv_width() + int64_t{2} * kShape.kv_head_count * kShape.head_dim},
        {[&](cudaStream_t on) {
           return cuda::RunSiluMul(gate_up.data<BFloat16>(), rows, kIntermediate,
                                   out.data<BFloat16>(), on);
         },
         int64_t{6} * kIntermediate}};
    std::printf("| %d |", rows);
    for (const auto& op : ops) {
      ASSIGN_OR_RETURN(const double time, MedianMicroseconds(stream, op.launch));
      std::printf(" %.2f | %.2f |", time,
                  static_cast<double>(rows * op.bytes) / kBytesPerMicrosecond);
    }
    std::printf("\n");
  }
  return absl::OkStatus();
}

absl::Status MeasureSampling(cudaStream_t stream) {
  uint64_t state = 2;
  ASSIGN_OR_RETURN(const Memory logits, Fill<float>(size_t{kMaxRows} * kVocab,
                                                    [&state] { return Noise(state) * 2.5f; }));
  ASSIGN_OR_RETURN(cuda::SampleBuffers buffers, cuda::SampleBuffers::Create(kMaxRows));
  std::vector<LogitEdit> edits(1000);
  for (size_t i = 0; i < edits.size(); ++i) {
    edits[i] = {.token_id = static_cast<int32_t>(i * 100), .bias = 1.0f};
  }
  const SampleRow kinds[] = {{},
                             {.temperature = 0.7f, .seed = 1},
                             {.temperature = 1.0f, .top_k = 50, .seed = 1},
                             {.temperature = 1.0f, .top_p = 0.9f, .seed = 1},
                             {.edits = edits},
                             {.given_token = 77},
                             {.top_count = 20}};
  std::printf(
      "\n| rows | floor | greedy | temperature 0.7 | top-k 50 | top-p 0.9 | 1000 edits | given | "
      "20 logprobs |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int32_t rows : {1, 16, 64, 128, 256, 512}) {
    std::printf("| %d | %.2f |", rows, 4.0 * rows * kVocab / kBytesPerMicrosecond);
    for (const SampleRow& kind : kinds) {
      const std::vector<SampleRow> params(static_cast<size_t>(rows), kind);
      RETURN_IF_ERROR(buffers.Upload(params, rows, kVocab, stream));
      RETURN_IF_ERROR(cuda::ToStatus(cudaStreamSynchronize(stream), "copying"));
      const cuda::SampleCall call = buffers.CallOn(logits.data<float>());
      ASSIGN_OR_RETURN(const double time, MedianMicroseconds(stream, [&](cudaStream_t on) {
                         return cuda::RunSample(call, on);
                       }));
      std::printf(" %.1f |", time);
    }
    std::printf("\n");
  }
  return absl::OkStatus();
}

absl::Status Run() {
  ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::Create());
  RETURN_IF_ERROR(MeasureRowOps(stream.get()));
  return MeasureSampling(stream.get());
}

}  // namespace
}  // namespace selfsame::bench

int main() {
  const absl::Status status = selfsame::bench::Run();
  return status.ok() ? 0 : selfsame::ReportFatal("row_ops_bench", status);
}
