// Sorts the algorithms for the products of the 8B shape into reduction classes, unsplit and cut
// into slices of k, and times them: which class is how fast at how many rows, and how fast the best
// of what cuBLASLt proposes is. Prints one line for each product and row count; "S slices, class i:
// m members, t us" names the fastest of a class, with * where it is a configuration of
// stream_gemm.h; class -1 has those whose bits depend on the slot.

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/process/flags.h"
#include "kernels/cuda/gemm_bench.h"

namespace selfsame::bench {
namespace {

constexpr int32_t kMaxRows = 512;
constexpr int kCandidates = 64;
constexpr int32_t kSplits[] = {1, 2, 4};

struct ClassFigures {
  int members = 0;
  float best_us = 0.0f;
  bool is_stream = false;
  float stream_us = 0.0f;  // fastest configuration of stream_gemm.h
};

using Classes = std::map<int, ClassFigures>;  // -1: bits that depend on the slot, or new ones

absl::StatusOr<Classes> MeasureClasses(const cuda::GemmLauncher& launcher, cuda::GemmBench& bench,
                                       int32_t rows, int32_t splits) {
  Classes classes;
  const auto algorithms = launcher.Propose(bench.shape(), rows, splits, kCandidates);
  ASSIGN_OR_RETURN(const auto times, bench.Time(algorithms, rows));
  for (size_t i = 0; i < algorithms.size(); ++i) {
    const std::optional<float> time_us = times[i];
    if (!time_us.has_value()) continue;
    ASSIGN_OR_RETURN(const std::optional<int> found, bench.Classify(algorithms[i], rows));
    ClassFigures& figures = classes[found.value_or(-1)];
    const bool is_stream = algorithms[i].stream_config >= 0;
    if (is_stream && (figures.stream_us == 0.0f || *time_us < figures.stream_us)) {
      figures.stream_us = *time_us;
    }
    if (figures.members++ == 0 || *time_us < figures.best_us) {
      figures.best_us = *time_us;
      figures.is_stream = is_stream;
    }
  }
  return classes;
}

absl::Status MeasureRows(const cuda::GemmLauncher& launcher, cuda::GemmBench& bench, int32_t rows) {
  const cuda::GemmShape& shape = bench.shape();
  float best_us = 0.0f;
  int tried = 0;
  const auto proposed = launcher.Propose(shape, rows, cuda::kAnyOrder, kCandidates);
  ASSIGN_OR_RETURN(const auto times, bench.Time(proposed, rows));
  for (const std::optional<float>& time_us : times) {
    if (!time_us.has_value()) continue;
    best_us = tried++ == 0 ? *time_us : std::min(best_us, *time_us);
  }
  std::printf("n %lld k %lld rows %d: best %.1f us of %d", static_cast<long long>(shape.n),
              static_cast<long long>(shape.k), rows, best_us, tried);
  for (const int32_t splits : kSplits) {
    ASSIGN_OR_RETURN(const Classes classes, MeasureClasses(launcher, bench, rows, splits));
    for (const auto& [index, figures] : classes) {
      std::printf("; %d slices, class %d: %d members, %.1f us%s", splits, index, figures.members,
                  figures.best_us, figures.is_stream ? "*" : "");
      if (figures.stream_us > 0.0f) std::printf(" (stream %.1f)", figures.stream_us);
    }
  }
  std::printf("\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Run() {
  ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::Create());
  ASSIGN_OR_RETURN(cuda::GemmLauncher launcher, cuda::GemmLauncher::Create(stream.get()));
  for (const cuda::GemmShape& shape :
       {cuda::GemmShape{.n = 6144, .k = 4096}, cuda::GemmShape{.n = 4096, .k = 4096},
        cuda::GemmShape{.n = 28672, .k = 4096}, cuda::GemmShape{.n = 4096, .k = 14336},
        cuda::GemmShape{.n = 128256, .k = 4096, .output = cuda::GemmOutput::kFloat}}) {
    for (const int32_t splits : kSplits) {
      RETURN_IF_ERROR(launcher.Reserve(shape, splits, kMaxRows));
    }
    ASSIGN_OR_RETURN(cuda::GemmBench bench, cuda::GemmBench::Create(launcher, shape, kMaxRows));
    for (const int32_t rows : {512, 384, 256, 128, 64, 32, 16, 8}) {
      RETURN_IF_ERROR(MeasureRows(launcher, bench, rows));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace selfsame::bench

int main() {
  const absl::Status status = selfsame::bench::Run();
  return status.ok() ? 0 : selfsame::ReportFatal("gemm_class_bench", status);
}
