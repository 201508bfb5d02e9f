#include "kernels/cuda/gemm_bench.h"

#include <algorithm>
#include <array>

#include "common/check.h"
#include "common/errors.h"

namespace selfsame::cuda {
namespace {

constexpr int32_t kShift = 5;
// Timed launches rotate among copies of the weights that together exceed any cache.
constexpr int64_t kRotatedBytes = int64_t{192} << 20;
constexpr int64_t kMinTimedLaunches = 8;
constexpr int kTimedRounds = 4;

class Event {
 public:
  Event() {
    if (cudaEventCreate(&event_) != cudaSuccess) event_ = nullptr;
  }
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Graph {
 public:
  Graph() = default;
  ~Graph() {
    if (executable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(executable_));
    if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Captures what `enqueue` enqueues. False when it fails, or cannot be captured.
  template <typename Enqueue>
  bool Capture(cudaStream_t stream, const Enqueue& enqueue) {
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
      return false;
    }
    const bool is_enqueued = enqueue();
    const bool is_captured = cudaStreamEndCapture(stream, &graph_) == cudaSuccess;
    const bool is_ready =
        is_enqueued && is_captured && cudaGraphInstantiate(&executable_, graph_, 0) == cudaSuccess;
    // A refused capture leaves an error behind that is not the device's.
    if (!is_ready) static_cast<void>(cudaGetLastError());
    return is_ready;
  }
  bool is_ready() const { return executable_ != nullptr; }
  cudaError_t Launch(cudaStream_t stream) const { return cudaGraphLaunch(executable_, stream); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// Milliseconds of one replay.
absl::StatusOr<float> TimeReplay(const Graph& graph, const Event& begin, const Event& end,
                                 cudaStream_t stream) {
  constexpr const char* kWhat = "timing a product";
  RETURN_IF_ERROR(ToStatus(cudaEventRecord(begin.get(), stream), kWhat));
  RETURN_IF_ERROR(ToStatus(graph.Launch(stream), kWhat));
  RETURN_IF_ERROR(ToStatus(cudaEventRecord(end.get(), stream), kWhat));
  RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream), kWhat));
  float elapsed_ms = 0.0f;
  RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&elapsed_ms, begin.get(), end.get()), kWhat));
  return elapsed_ms;
}

}  // namespace

absl::StatusOr<GemmBench> GemmBench::Create(const GemmLauncher& launcher, const GemmShape& shape,
                                            int32_t max_rows) {
  GemmBench bench(launcher, shape);
  const auto n = static_cast<size_t>(shape.n);
  const auto k = static_cast<size_t>(shape.k);
  const auto rows = static_cast<size_t>(max_rows);
  const size_t element = shape.output_element_bytes();
  const int64_t weight_bytes = shape.n * shape.k * static_cast<int64_t>(sizeof(BFloat16));
  bench.weight_copies_ = std::clamp<int64_t>(kRotatedBytes / weight_bytes, 1, 32);
  const auto weight_count = static_cast<size_t>(bench.weight_copies_ * shape.n * shape.k);
  ASSIGN_OR_RETURN(bench.weights_, Memory::Create(weight_count * sizeof(BFloat16)));
  ASSIGN_OR_RETURN(bench.rows_, Memory::Create(rows * k * sizeof(BFloat16)));
  ASSIGN_OR_RETURN(bench.shifted_, Memory::Create(rows * k * sizeof(BFloat16)));
  ASSIGN_OR_RETURN(bench.output_, Memory::Create(rows * n * element));
  ASSIGN_OR_RETURN(bench.bias_, Memory::Create(n * sizeof(BFloat16)));
  ASSIGN_OR_RETURN(bench.references_, Memory::Create(kMaxClasses * kProbeRows * n * element));
  ASSIGN_OR_RETURN(bench.mismatches_, Memory::Create(kMaxClasses * sizeof(uint32_t)));
  const cudaStream_t stream = launcher.stream();
  RETURN_IF_ERROR(ToStatus(FillProbeWeights(shape.n, shape.k, static_cast<int64_t>(weight_count),
                                            bench.weights_.data<BFloat16>(), stream),
                           "filling probe weights"));
  RETURN_IF_ERROR(
      ToStatus(FillProbeRows(max_rows, shape.k, 0, false, bench.rows_.data<BFloat16>(), stream),
               "filling probe rows"));
  RETURN_IF_ERROR(ToStatus(
      FillProbeRows(max_rows, shape.k, kShift, true, bench.shifted_.data<BFloat16>(), stream),
      "filling probe rows"));
  RETURN_IF_ERROR(
      ToStatus(FillProbeRows(1, shape.n, 0, false, bench.bias_.data<BFloat16>(), stream),
               "filling a probe bias"));
  return bench;
}

GemmOperands GemmBench::Operands(bool is_shifted, int64_t copy) const {
  return {.x = (is_shifted ? shifted_ : rows_).data<BFloat16>(),
          .w = weights_.data<BFloat16>() + copy * shape_.n * shape_.k,
          .bias = bias_.data<BFloat16>(),
          .y = output_.data()};
}

void* GemmBench::Reference(int class_index) const {
  const size_t size_bytes =
      kProbeRows * static_cast<size_t>(shape_.n) * shape_.output_element_bytes();
  return references_.data<std::byte>() + static_cast<size_t>(class_index) * size_bytes;
}

absl::StatusOr<bool> GemmBench::RunProbe(const GemmAlgorithm& algorithm, int32_t rows,
                                         bool is_shifted) {
  // All bits set is NaN: an element that is not written agrees with nothing.
  const size_t size_bytes =
      static_cast<size_t>(rows) * static_cast<size_t>(shape_.n) * shape_.output_element_bytes();
  RETURN_IF_ERROR(
      ToStatus(cudaMemsetAsync(output_.data(), 0xff, size_bytes, launcher_.stream()), "poisoning"));
  if (algorithm.splits > 1) RETURN_IF_ERROR(launcher_.PoisonPartials());
  return launcher_.Run(shape_, algorithm, rows, Operands(is_shifted)).ok();
}

absl::StatusOr<uint32_t> GemmBench::Agreement(int32_t rows, bool is_shifted, int class_count) {
  const cudaStream_t stream = launcher_.stream();
  const ProbeComparison comparison = {.y = output_.data(),
                                      .references = references_.data(),
                                      .n = shape_.n,
                                      .rows = rows,
                                      .class_count = class_count,
                                      .shift = is_shifted ? kShift : 0,
                                      .has_poison = is_shifted,
                                      .element_bytes = shape_.output_element_bytes()};
  std::array<uint32_t, kMaxClasses> mismatches = {};
  RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(mismatches_.data(), 0, sizeof(mismatches), stream),
                           "clearing counts"));
  RETURN_IF_ERROR(ToStatus(CountMismatches(comparison, mismatches_.data<uint32_t>(), stream),
                           "comparing products"));
  RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(mismatches.data(), mismatches_.data(),
                                           sizeof(mismatches), cudaMemcpyDeviceToHost, stream),
                           "reading counts"));
  RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream), "comparing products"));
  uint32_t agreement = 0;
  for (int i = 0; i < class_count; ++i) {
    if (mismatches[static_cast<size_t>(i)] == 0) agreement |= 1u << i;
  }
  return agreement;
}

absl::StatusOr<std::optional<int>> GemmBench::Classify(const GemmAlgorithm& algorithm,
                                                       int32_t rows) {
  ASSIGN_OR_RETURN(const bool runs, RunProbe(algorithm, rows, false));
  if (!runs) return std::optional<int>();
  // The newest reference is tried out before it becomes a class.
  const bool may_be_new = rows >= kProbeRows && class_count_ < kMaxClasses;
  if (may_be_new) {
    const size_t size_bytes =
        kProbeRows * static_cast<size_t>(shape_.n) * shape_.output_element_bytes();
    RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(Reference(class_count_), output_.data(), size_bytes,
                                             cudaMemcpyDeviceToDevice, launcher_.stream()),
                             "copying a reference"));
  }
  const int compared = class_count_ + (may_be_new ? 1 : 0);
  ASSIGN_OR_RETURN(uint32_t agreement, Agreement(rows, false, compared));
  if (agreement == 0) return std::optional<int>();
  ASSIGN_OR_RETURN(const bool runs_shifted, RunProbe(algorithm, rows, true));
  if (!runs_shifted) return std::optional<int>();
  ASSIGN_OR_RETURN(const uint32_t shifted_agreement, Agreement(rows, true, compared));
  agreement &= shifted_agreement;
  if (agreement == 0) return std::optional<int>();
  int found = 0;
  while ((agreement >> found & 1u) == 0) ++found;
  if (found == class_count_) ++class_count_;
  return std::optional<int>(found);
}

absl::StatusOr<bool> GemmBench::IsMember(const GemmAlgorithm& algorithm, int32_t rows,
                                         int class_index) {
  SELFSAME_CHECK(class_index < class_count_);
  for (const bool is_shifted : {false, true}) {
    ASSIGN_OR_RETURN(const bool runs, RunProbe(algorithm, rows, is_shifted));
    if (!runs) return false;
    ASSIGN_OR_RETURN(const uint32_t agreement, Agreement(rows, is_shifted, class_count_));
    if ((agreement >> class_index & 1u) == 0) return false;
  }
  return true;
}

absl::StatusOr<std::vector<std::optional<float>>> GemmBench::Time(
    std::span<const GemmAlgorithm> algorithms, int32_t rows) {
  const cudaStream_t stream = launcher_.stream();
  const int64_t launches = std::max(kMinTimedLaunches, weight_copies_);
  std::vector<Graph> graphs(algorithms.size());
  for (size_t i = 0; i < algorithms.size(); ++i) {
    // Loads the kernel, which cannot be done while capturing.
    ASSIGN_OR_RETURN(const bool runs, RunProbe(algorithms[i], rows, false));
    if (!runs) continue;
    RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream), "running a product"));
    static_cast<void>(graphs[i].Capture(stream, [&] {
      for (int64_t launch = 0; launch < launches; ++launch) {
        const GemmOperands operands = Operands(false, launch % weight_copies_);
        if (!launcher_.Run(shape_, algorithms[i], rows, operands).ok()) return false;
      }
      return true;
    }));
  }
  const Event begin;
  const Event end;
  std::vector<std::optional<float>> times(algorithms.size());
  for (int round = 0; round < kTimedRounds; ++round) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      if (!graphs[i].is_ready()) continue;
      ASSIGN_OR_RETURN(const float elapsed_ms, TimeReplay(graphs[i], begin, end, stream));
      const float time_us = elapsed_ms * 1000.0f / static_cast<float>(launches);
      times[i] = times[i].has_value() ? std::min(*times[i], time_us) : time_us;
    }
  }
  return times;
}

absl::StatusOr<bool> GemmBench::Runs(const GemmAlgorithm& algorithm,
                                     std::initializer_list<int32_t> row_counts) {
  for (const int32_t rows : row_counts) {
    if (rows < 1) continue;
    ASSIGN_OR_RETURN(const bool runs, RunProbe(algorithm, rows, false));
    if (!runs) return false;
  }
  RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(launcher_.stream()), "running a product"));
  return true;
}

}  // namespace selfsame::cuda
