// Times the forward pass in this process: decode steps at several batch sizes and a prefill. Prints
// one "NAME VALUE" line a figure, for scripts to read.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "bench/engine/read_bandwidth.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/model/model.h"
#include "decoder/client/counter_random.h"
#include "decoder/client/flag_parser.h"
#include "kernels/backend.h"

namespace selfsame::bench {
namespace {

constexpr int32_t kMaxBatch = 64;

struct Flags {
  std::string model;
  std::string device = "cpu";
  std::string schedule = "fast";
  int32_t threads = 0;
  std::string batches = "1,8";
  int32_t context = 128;
  int32_t steps = 64;
  int32_t prefill = 512;
  int32_t prefill_repetitions = 7;
  bool bandwidth = true;
};

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Sequences of equal length, each with its own blocks of the cache.
class Sequences {
 public:
  Sequences(Model& model, KvCache& kv, int32_t count)
      : model_(model), kv_(kv), blocks_(model.limits().context_limit / kKvBlockTokens) {
    for (int32_t i = 0; i < count; ++i) {
      tables_.emplace_back(blocks_);
      std::iota(tables_.back().begin(), tables_.back().end(), i * blocks_);
    }
    newest_.resize(count);
  }

  // One pass over `length` random tokens of sequence `index`, from position 0.
  absl::Status Prefill(int32_t index, int32_t length) {
    client::CounterRandom random(index);
    std::vector<int32_t> tokens(length);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random.Below(model_.config().vocab_size));
    }
    std::vector<int32_t> positions(length);
    std::iota(positions.begin(), positions.end(), 0);
    const SequenceRows rows{0, length, 0, tables_[index].data()};
    const int32_t last_row = length - 1;
    SampledToken sampled;
    RETURN_IF_ERROR(Run(tokens, positions, {&rows, 1}, {&last_row, 1}, {&sampled, 1}));
    newest_[index] = sampled.token_id;
    return absl::OkStatus();
  }

  // One decode step of every sequence, whose newest token stands at `position`.
  absl::Status Decode(int32_t position) {
    const auto count = static_cast<int32_t>(newest_.size());
    const std::vector<int32_t> positions(count, position);
    std::vector<int32_t> logit_rows(count);
    std::iota(logit_rows.begin(), logit_rows.end(), 0);
    std::vector<SequenceRows> rows;
    for (int32_t i = 0; i < count; ++i) rows.push_back({i, 1, position, tables_[i].data()});
    std::vector<SampledToken> sampled(count);
    RETURN_IF_ERROR(Run(newest_, positions, rows, logit_rows, sampled));
    for (int32_t i = 0; i < count; ++i) newest_[i] = sampled[i].token_id;
    return absl::OkStatus();
  }

 private:
  absl::Status Run(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                   std::span<const SequenceRows> rows, std::span<const int32_t> logit_rows,
                   std::span<SampledToken> sampled) {
    const Pass pass{.row_count = static_cast<int32_t>(tokens.size()),
                    .token_ids = tokens,
                    .positions = positions,
                    .sequences = rows,
                    .logit_rows = logit_rows};
    const std::vector<SampleRow> greedy(logit_rows.size());
    return model_.Run(pass, kv_, greedy, sampled);
  }

  Model& model_;
  KvCache& kv_;
  int32_t blocks_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> newest_;  // of each sequence; not in the cache yet
};

absl::Status MeasureDecode(Model& model, KvCache& kv, int32_t batch, const Flags& flags) {
  Sequences sequences(model, kv, batch);
  for (int32_t i = 0; i < batch; ++i) RETURN_IF_ERROR(sequences.Prefill(i, flags.context));
  std::vector<double> milliseconds;
  for (int32_t step = 0; step < flags.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(sequences.Decode(flags.context + step));
    milliseconds.push_back(MillisecondsSince(start));
  }
  std::printf("decode_%d_ms %.4f\n", batch, Median(milliseconds));
  return absl::OkStatus();
}

absl::Status MeasurePrefill(Model& model, KvCache& kv, const Flags& flags) {
  Sequences sequences(model, kv, 1);
  RETURN_IF_ERROR(sequences.Prefill(0, flags.prefill));
  std::vector<double> milliseconds;
  for (int32_t i = 0; i < flags.prefill_repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(sequences.Prefill(0, flags.prefill));
    milliseconds.push_back(MillisecondsSince(start));
  }
  std::printf("prefill_%d_ms %.4f\n", flags.prefill, Median(milliseconds));
  return absl::OkStatus();
}

// What a decode step reads of the weights: every matrix once; norms and biases are left out, and so
// is an embedding that is not the head as well.
int64_t WeightBytes(const ModelConfig& config) {
  const int64_t attention =
      config.hidden_size * config.head_dim * (2 * config.head_count + 2 * config.kv_head_count);
  const int64_t mlp = 3 * config.hidden_size * config.intermediate_size;
  return 2 * (config.layer_count * (attention + mlp) + config.vocab_size * config.hidden_size);
}

absl::StatusOr<std::vector<int32_t>> ParseBatches(const std::string& text) {
  std::vector<int32_t> batches;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int32_t batch = 0;
    if (!absl::SimpleAtoi(part, &batch) || batch < 1 || batch > kMaxBatch) {
      return InvalidArgumentError("--batches", "must be numbers from 1 to 64, separated by commas");
    }
    batches.push_back(batch);
  }
  return batches;
}

absl::Status Run(Flags flags) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> batches, ParseBatches(flags.batches));
  if (flags.threads == 0) flags.threads = static_cast<int32_t>(std::thread::hardware_concurrency());
  if (flags.schedule != "fast" && flags.schedule != "canonical") {
    return InvalidArgumentError("--schedule", "must be fast or canonical");
  }
  if (flags.bandwidth) {
    ASSIGN_OR_RETURN(const double bandwidth, MeasureReadBandwidth(flags.threads));
    std::printf("read_gb_per_second %.3f\n", bandwidth / 1e9);
  }
  const int32_t length = std::max(flags.context + flags.steps, flags.prefill) + kKvBlockTokens;
  const int32_t blocks = length / kKvBlockTokens;
  const PassLimits limits{.max_rows = std::max({kMaxBatch, flags.context, flags.prefill}),
                          .max_logit_rows = kMaxBatch,
                          .context_limit = blocks * kKvBlockTokens};
  ASSIGN_OR_RETURN(auto ops, CreateOps({.device = flags.device,
                                        .schedule = flags.schedule == "fast" ? Schedule::kFast
                                                                             : Schedule::kCanonical,
                                        .thread_count = flags.threads,
                                        .max_rows = limits.max_rows,
                                        .max_logit_rows = limits.max_logit_rows,
                                        .max_table_entries = int64_t{blocks} * kMaxBatch}));
  ASSIGN_OR_RETURN(auto model, Model::Load(flags.model, limits, std::move(ops)));
  ASSIGN_OR_RETURN(auto kv, model->CreateKvCache(blocks * kMaxBatch));
  std::printf("weight_bytes %lld\n", static_cast<long long>(WeightBytes(model->config())));
  for (const int32_t batch : batches) {
    RETURN_IF_ERROR(MeasureDecode(*model, *kv, batch, flags));
  }
  if (flags.prefill > 0) RETURN_IF_ERROR(MeasurePrefill(*model, *kv, flags));
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  Flags flags;
  client::FlagParser parser("engine_bench --model=DIR [--flag=value ...]",
                            "Times decode steps and a prefill of a model in this process.");
  parser.Add("model", &flags.model, "Hugging Face directory");
  parser.Add("device", &flags.device, "cpu, cuda or cuda:N");
  parser.Add("schedule", &flags.schedule, "fast or canonical");
  parser.Add("threads", &flags.threads, "0: one for each CPU");
  parser.Add("batches", &flags.batches, "batch sizes of the decode steps");
  parser.Add("context", &flags.context, "tokens before the first decode step");
  parser.Add("steps", &flags.steps, "decode steps; the median is printed");
  parser.Add("prefill", &flags.prefill, "tokens of the prefill; 0: none");
  parser.Add("prefill_repetitions", &flags.prefill_repetitions, "the median is printed");
  parser.Add("bandwidth", &flags.bandwidth, "measure the machine's read bandwidth first");
  absl::Status status = parser.Parse(arguments);
  if (parser.help_requested()) {
    std::fputs(parser.Help().c_str(), stdout);
    return 0;
  }
  if (status.ok()) status = Run(flags);
  if (!status.ok()) std::fprintf(stderr, "engine_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace selfsame::bench

int main(int argc, char** argv) {
  return selfsame::bench::Main(std::vector<std::string>(argv + 1, argv + argc));
}
