// Times passes of the 8B shape (Llama-3.1-8B: 32 layers, hidden 4096) on a GPU under both
// schedules: decode steps and verifier passes, their parts, and the fastest matrix products that
// there are for them, of any order. What is compared runs in turn: under 512 rows without a pause
// the device lowers its clocks to keep within its power, after a pause it does not. Prints Markdown
// tables.
//
//   cuda_pass_bench [CONTEXT [plain]]
//
// CONTEXT: positions before each row's sequence, default 1024. plain: passes are enqueued op by op,
// not as graphs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "bench/cuda/layer_model.h"
#include "common/errors.h"
#include "common/process/flags.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gemm_plans.h"

namespace selfsame::bench {
namespace {

constexpr int32_t kMaxRows = 512;
constexpr int kWarmUps = 3;
constexpr int kRepetitions = 15;
constexpr int32_t kPartCount = 20;
// Long enough for the device to return to its full clocks.
constexpr std::chrono::milliseconds kPause{60};

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// Medians of each of `runs`, taken in turn, so that all meet the device in the same state. `pause`:
// before each.
absl::StatusOr<std::vector<double>> MediansMs(
    const std::vector<std::function<absl::Status()>>& runs, std::chrono::milliseconds pause = {}) {
  std::vector<std::vector<double>> times(runs.size());
  for (int i = -kWarmUps; i < kRepetitions; ++i) {
    for (size_t run = 0; run < runs.size(); ++run) {
      if (pause.count() > 0) std::this_thread::sleep_for(pause);
      const auto start = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(runs[run]());
      if (i >= 0) times[run].push_back(MillisecondsSince(start));
    }
  }
  std::vector<double> medians;
  for (auto& run : times) {
    std::sort(run.begin(), run.end());
    medians.push_back(run[run.size() / 2]);
  }
  return medians;
}

absl::StatusOr<double> MedianMs(const std::function<absl::Status()>& run) {
  ASSIGN_OR_RETURN(const std::vector<double> medians, MediansMs({run}));
  return medians.front();
}

// Milliseconds of all matrix products of a pass: those the plans chose, and the fastest there are.
struct GemmSum {
  double chosen = 0.0;
  double best = 0.0;
};

absl::StatusOr<std::map<int32_t, GemmSum>> SumGemms(const LayerModelShape& shape,
                                                    cuda::GemmPlans& plans) {
  const struct {
    cuda::GemmShape shape;
    int count;
  } products[] = {
      {{.n = shape.attention.qkv_width(), .k = shape.hidden}, shape.layers},
      {{.n = shape.hidden, .k = shape.attention.output_width()}, shape.layers},
      {{.n = 2 * shape.intermediate, .k = shape.hidden}, shape.layers},
      {{.n = shape.hidden, .k = shape.intermediate}, shape.layers},
      {{.n = shape.vocab, .k = shape.hidden, .output = cuda::GemmOutput::kFloat}, 1},
  };
  std::map<int32_t, GemmSum> sums;
  for (const auto& product : products) {
    ASSIGN_OR_RETURN(const auto* found, plans.PlansFor(product.shape));
    for (const cuda::GemmPlan& plan : *found) {
      sums[plan.rows].chosen += product.count * plan.time_us / 1000.0;
      sums[plan.rows].best += product.count * plan.best_time_us / 1000.0;
    }
  }
  return sums;
}

absl::StatusOr<std::map<int32_t, GemmSum>> MeasureGemms(const LayerModelShape& shape,
                                                        Schedule schedule) {
  ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::Create());
  ASSIGN_OR_RETURN(cuda::GemmLauncher launcher, cuda::GemmLauncher::Create(stream.get()));
  cuda::GemmPlans plans(std::move(launcher), {.schedule = schedule,
                                              .class_slack = 0.0,
                                              .max_rows = kMaxRows,
                                              .max_logit_rows = kMaxRows,
                                              .plan_file = {},
                                              .scope = {}});
  return SumGemms(shape, plans);
}

absl::Status PrintGemms(const LayerModelShape& shape, std::map<int32_t, GemmSum>& best) {
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(best, MeasureGemms(shape, Schedule::kFast));
  const double fast_ms = MillisecondsSince(start);
  ASSIGN_OR_RETURN(auto canonical, MeasureGemms(shape, Schedule::kCanonical));
  std::printf("\nAll matrix products of a pass, ms (search of one schedule: %.1f s)\n\n",
              fast_ms / 1000.0);
  std::printf("| rows | best of all | canonical | canonical / best |\n");
  std::printf("| --- | --- | --- | --- |\n");
  for (const auto& [rows, sum] : best) {
    const auto found = canonical.lower_bound(rows);
    std::printf("| %d | %.3f | %.3f | %.3f |\n", rows, sum.chosen, found->second.chosen,
                found->second.chosen / sum.chosen);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LayerModel>> Create(const LayerModelShape& shape, Schedule schedule,
                                                   int32_t kv_blocks, bool use_graphs) {
  ASSIGN_OR_RETURN(auto ops, CreateCudaOps({.schedule = schedule,
                                            .max_rows = kMaxRows,
                                            .max_logit_rows = kMaxRows,
                                            .max_table_entries = kv_blocks,
                                            .class_slack = 0.0,
                                            .use_graphs = use_graphs}));
  return LayerModel::Create(shape, kMaxRows, kv_blocks, std::move(ops));
}

absl::Status PrintParts(LayerModel& model, const LayerModelShape& shape, const char* name,
                        const LayerPass& pass) {
  using Part = LayerModel::Part;
  const struct {
    Part part;
    int count;
  } parts[] = {{Part::kGemms, shape.layers},
               {Part::kAttention, shape.layers},
               {Part::kRope, shape.layers},
               {Part::kNorm, 2 * shape.layers},
               {Part::kSilu, shape.layers},
               {Part::kHead, 1},
               {Part::kSample, 1}};
  ASSIGN_OR_RETURN(const double total, MedianMs([&] { return model.Run(pass); }));
  std::printf("| %s | %d x %d | %.3f |", name, pass.sequences, pass.rows, total);
  for (const auto& part : parts) {
    ASSIGN_OR_RETURN(const double time,
                     MedianMs([&] { return model.RunPart(part.part, pass, kPartCount); }));
    std::printf(" %.3f |", time / kPartCount * part.count);
  }
  std::printf("\n");
  return absl::OkStatus();
}

absl::Status Run(int32_t context, bool use_graphs) {
  const LayerModelShape shape;
  std::map<int32_t, GemmSum> best;
  RETURN_IF_ERROR(PrintGemms(shape, best));

  const int32_t kv_blocks = 256 * ((context + 64) / kKvBlockTokens + 1);
  ASSIGN_OR_RETURN(auto fast, Create(shape, Schedule::kFast, kv_blocks, use_graphs));
  ASSIGN_OR_RETURN(auto canonical, Create(shape, Schedule::kCanonical, kv_blocks, use_graphs));
  std::printf("\nDecode, context %d, ms a step\n\n", context);
  std::printf("| batch | fast | canonical | throughput canonical / fast |\n");
  std::printf("| --- | --- | --- | --- |\n");
  for (const int32_t batch : {1, 4, 8, 16, 32, 64, 128, 256}) {
    const LayerPass pass = {.sequences = batch, .rows = 1, .context = context};
    ASSIGN_OR_RETURN(
        const std::vector<double> ms,
        MediansMs({[&] { return fast->Run(pass); }, [&] { return canonical->Run(pass); }}));
    std::printf("| %d | %.3f | %.3f | %.3f |\n", batch, ms[0], ms[1], ms[0] / ms[1]);
  }
  std::printf("\nVerifier pass of windows of 64 rows, context %d, ms\n\n", context);
  std::printf(
      "| rows | canonical pass | its products | best products | pass / best | after a pause: pass "
      "| best products | pass / best | sum of each product's best, alone | pass / sum |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int32_t rows : {64, 128, 256, 512}) {
    const LayerPass pass = {.sequences = rows / 64, .rows = 64, .context = context};
    RETURN_IF_ERROR(fast->Run(pass));  // inputs for its products
    const auto run_pass = [&] { return canonical->Run(pass); };
    const auto run_best = [&] { return fast->RunProducts(pass); };
    ASSIGN_OR_RETURN(const std::vector<double> ms,
                     MediansMs({run_pass, [&] { return canonical->RunProducts(pass); }, run_best}));
    ASSIGN_OR_RETURN(const std::vector<double> rested, MediansMs({run_pass, run_best}, kPause));
    std::printf("| %d | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f |\n", rows,
                ms[0], ms[1], ms[2], ms[0] / ms[2], rested[0], rested[1], rested[0] / rested[1],
                best[rows].chosen, rested[0] / best[rows].chosen);
  }
  std::printf("\nParts of a pass, ms (each measured alone, over all layers)\n\n");
  std::printf(
      "| schedule | sequences x rows | pass | products | attention | RoPE, KV | norms | "
      "SiLU | head | sampling |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const LayerPass& pass :
       {LayerPass{1, 1, context}, LayerPass{16, 1, context}, LayerPass{64, 1, context},
        LayerPass{256, 1, context}, LayerPass{1, 64, context}, LayerPass{8, 64, context}}) {
    RETURN_IF_ERROR(PrintParts(*canonical, shape, "canonical", pass));
    RETURN_IF_ERROR(PrintParts(*fast, shape, "fast", pass));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace selfsame::bench

int main(int argc, char** argv) {
  const int context = argc > 1 ? std::atoi(argv[1]) : 1024;
  const bool use_graphs = argc < 3 || std::strcmp(argv[2], "plain") != 0;
  const absl::Status status = selfsame::bench::Run(std::clamp(context, 1, 8192), use_graphs);
  return status.ok() ? 0 : selfsame::ReportFatal("cuda_pass_bench", status);
}
