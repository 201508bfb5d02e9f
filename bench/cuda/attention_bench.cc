// Times attention of the 8B shape (32 query heads, 8 kv heads of 128) under the canonical schedule
// against its floor: the larger of the cache's bytes over the device's bandwidth and the operations
// over its bf16 rate, taken to be an H200's (4.35 TB/s, 790 TFLOP/s). Prints a Markdown table.
//
//   attention_bench [SEQUENCES ROWS CONTEXT]
//
// Of one shape: that many sequences of ROWS rows each, after CONTEXT positions. By default several.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/cuda/layer_model.h"
#include "common/errors.h"
#include "common/process/flags.h"
#include "kernels/cuda/cuda_ops.h"

namespace selfsame::bench {
namespace {

constexpr double kBytesPerMicrosecond = 4.35e6;
constexpr double kOperationsPerMicrosecond = 790e6;
constexpr int32_t kMaxRows = 2048;
constexpr int32_t kOps = 64;  // of one measured pass
constexpr int kRepetitions = 9;

absl::StatusOr<double> MicrosecondsAnOp(LayerModel& model, const LayerPass& pass) {
  std::vector<double> times;
  for (int i = 0; i < 3 + kRepetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(model.RunPart(LayerModel::Part::kAttention, pass, kOps));
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    if (i >= 3) times.push_back(elapsed.count() / kOps);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double FloorMicroseconds(const AttentionShape& shape, const LayerPass& pass) {
  const double keys = pass.context + pass.rows;
  const double bytes = pass.sequences * keys * 2 * shape.kv_head_count * shape.head_dim * 2;
  // Of a row, keys up to its own; two products of 2 operations.
  const double scores =
      static_cast<double>(pass.sequences) * pass.rows * (pass.context + (pass.rows + 1) / 2.0);
  const double operations = scores * shape.head_count * shape.head_dim * 4;
  return std::max(bytes / kBytesPerMicrosecond, operations / kOperationsPerMicrosecond);
}

absl::Status Run(const std::vector<LayerPass>& passes) {
  // Nothing but attention is run: the rest of the layer is small.
  const LayerModelShape shape = {.layers = 1, .hidden = 512, .intermediate = 512, .vocab = 1024};
  ASSIGN_OR_RETURN(auto ops, CreateCudaOps({.schedule = Schedule::kCanonical,
                                            .max_rows = kMaxRows,
                                            .max_logit_rows = kMaxRows}));
  ASSIGN_OR_RETURN(auto model, LayerModel::Create(shape, kMaxRows, 18000, std::move(ops)));
  std::printf("| sequences x rows | context | us | floor us | us / floor |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  for (const LayerPass& pass : passes) {
    ASSIGN_OR_RETURN(const double time_us, MicrosecondsAnOp(*model, pass));
    const double floor_us = FloorMicroseconds(shape.attention, pass);
    std::printf("| %d x %d | %d | %.1f | %.1f | %.2f |\n", pass.sequences, pass.rows, pass.context,
                time_us, floor_us, time_us / floor_us);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace selfsame::bench

int main(int argc, char** argv) {
  std::vector<selfsame::bench::LayerPass> passes = {
      {8, 64, 1024},  {4, 64, 1024}, {2, 64, 1024}, {1, 64, 1024}, {32, 16, 1024},
      {16, 32, 4096}, {8, 64, 8000}, {1, 512, 0},   {1, 2048, 0},  {4, 512, 2048},
      {1, 1, 1024},   {16, 1, 1024}, {64, 1, 1024}, {256, 1, 1024}};
  if (argc == 4) passes = {{std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3])}};
  const absl::Status status = selfsame::bench::Run(passes);
  return status.ok() ? 0 : selfsame::ReportFatal("attention_bench", status);
}
