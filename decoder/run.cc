#include "decoder/run.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/canonical/authority.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/metrics/metrics.h"
#include "common/metrics/metrics_server.h"
#include "common/model/model.h"
#include "common/mutex.h"
#include "common/process/flags.h"
#include "common/process/shutdown_signal.h"
#include "common/rpc/service_main.h"
#include "common/tokenizer/tokenizer.h"
#include "decoder/engine/decoder_engine.h"
#include "decoder/metrics.h"
#include "decoder/server.h"
#include "decoder/service.h"
#include "decoder/verifier_client.h"
#include "kernels/backend.h"

ABSL_FLAG(std::string, model_dir, "",
          "Hugging Face model directory. Required, but for the tokeniser of a synthetic model.");
ABSL_FLAG(std::string, load_format, "safetensors",
          "safetensors, or synthetic:SHAPE:SEED[:gain=G][:beta=B] for weights made from a seed in "
          "the shape of a real model: 8b, 3b or tiny.");
ABSL_FLAG(std::string, listen, "127.0.0.1:50051",
          "HOST:PORT to serve on; port 0 takes a free one.");
ABSL_FLAG(
    std::vector<std::string>, verifiers, {},
    "Verifiers, HOST:PORT each, separated by commas. Without any, deterministic requests fail.");
ABSL_FLAG(std::string, metrics_listen, "",
          "HOST:PORT to serve metrics on, at /metrics; port 0 takes a free one; empty: none.");
ABSL_FLAG(std::string, device, "cpu", "Where the model runs: cpu, cuda or cuda:N.");
ABSL_FLAG(std::string, schedule, "fast",
          "fast, or canonical: every request is computed as a verifier computes it, in one go, and "
          "deterministic ones need no verifier.");
ABSL_FLAG(bool, cuda_graphs, true, "CUDA: replay passes that come again as graphs.");
ABSL_FLAG(std::string, gemm_plan_file, "",
          "CUDA: file in which measured plans of matrix products are kept between runs.");
ABSL_FLAG(
    double, class_slack, 0.03,
    "CUDA: a plan with the verifier's bits is taken when it is at most this share slower, 0 to 1.");
ABSL_FLAG(int32_t, threads, 0, "CPU threads of the forward pass; 0: one for each CPU.");
ABSL_FLAG(int32_t, kv_size_mb, 512, "Memory of the KV cache in MiB.");
ABSL_FLAG(int32_t, context_limit, 0,
          "Tokens of a request, prompt and output together; 0: the model's limit, at most 8192. "
          "Verifiers must have the same.");
ABSL_FLAG(
    bool, enable_prefix_caching, true,
    "Whether KV of finished and other requests serves those that begin with the same tokens.");
ABSL_FLAG(int32_t, max_batch_size, 32, "Requests in one forward pass.");
ABSL_FLAG(int32_t, max_batch_tokens, 256, "Rows in one forward pass, prompts included.");
ABSL_FLAG(int32_t, prefill_chunk, 0,
          "Rows one prompt takes of a forward pass before other prompts have theirs; 0: half of "
          "max_batch_tokens.");
ABSL_FLAG(int32_t, window_size, 64, "Candidates in one window, at most.");
ABSL_FLAG(int32_t, max_inflight_windows, 4, "Unanswered windows of one request, at most.");
ABSL_FLAG(int32_t, max_window_age_ms, 250, "After this time a window is submitted, full or not.");
ABSL_FLAG(double, doubt_margin, 0.0,
          "A greedy candidate whose logit leads the next by less is submitted early; 0: none is.");
ABSL_FLAG(int32_t, max_queue, 256, "Requests that may wait; more are refused.");
ABSL_FLAG(int32_t, failover_timeout_ms, 30000,
          "How long a deterministic request waits for a verifier before it fails.");
ABSL_FLAG(int32_t, verdict_timeout_ms, 30000,
          "A verifier that owes verdicts and gives none for so long is taken for lost. It has as "
          "much again for each 1024 tokens of a request.");
ABSL_FLAG(int32_t, drain_timeout_ms, 30000,
          "How long requests in progress may go on after SIGTERM or SIGINT.");

namespace selfsame::decoder {
namespace {

constexpr double kMaxClassSlack = 1.0;
constexpr double kMaxDoubtMargin = 100.0;
constexpr char kProgram[] = "selfsame-decoder";
// What finished requests may take to reach their clients at the end.
constexpr std::chrono::milliseconds kFlushTime{1000};

// Everything that can be said of the flags without the model.
absl::Status CheckFlags() {
  const auto check = [](const char* name, const absl::Flag<int32_t>& flag, int64_t minimum,
                        int64_t maximum) {
    return CheckFlagRange(name, absl::GetFlag(flag), minimum, maximum);
  };
  RETURN_IF_ERROR(check("--threads", FLAGS_threads, 0, kMaxThreads));
  RETURN_IF_ERROR(check("--kv_size_mb", FLAGS_kv_size_mb, 1, kMaxKvSizeMb));
  RETURN_IF_ERROR(check("--max_batch_size", FLAGS_max_batch_size, 1, kMaxBatchSize));
  RETURN_IF_ERROR(check("--max_batch_tokens", FLAGS_max_batch_tokens,
                        absl::GetFlag(FLAGS_max_batch_size), kMaxBatchTokens));
  RETURN_IF_ERROR(
      check("--prefill_chunk", FLAGS_prefill_chunk, 0, absl::GetFlag(FLAGS_max_batch_tokens)));
  RETURN_IF_ERROR(check("--window_size", FLAGS_window_size, 1, kMaxWindowSize));
  RETURN_IF_ERROR(
      check("--max_inflight_windows", FLAGS_max_inflight_windows, 1, kMaxPendingWindows));
  RETURN_IF_ERROR(check("--max_window_age_ms", FLAGS_max_window_age_ms, 1, kMaxTimeoutMs));
  RETURN_IF_ERROR(
      CheckRealFlagRange("--class_slack", absl::GetFlag(FLAGS_class_slack), 0.0, kMaxClassSlack));
  RETURN_IF_ERROR(CheckRealFlagRange("--doubt_margin", absl::GetFlag(FLAGS_doubt_margin), 0.0,
                                     kMaxDoubtMargin));
  RETURN_IF_ERROR(check("--max_queue", FLAGS_max_queue, 1, kMaxQueuedRequests));
  RETURN_IF_ERROR(check("--failover_timeout_ms", FLAGS_failover_timeout_ms, 0, kMaxTimeoutMs));
  RETURN_IF_ERROR(check("--verdict_timeout_ms", FLAGS_verdict_timeout_ms, 1, kMaxTimeoutMs));
  return check("--drain_timeout_ms", FLAGS_drain_timeout_ms, 0, kMaxTimeoutMs);
}

absl::Status CheckVerifierAddresses(const std::vector<std::string>& addresses) {
  if (addresses.size() > kMaxVerifiers) {
    return InvalidArgumentError(
        "--verifiers",
        absl::StrCat("names ", addresses.size(), " verifiers; the limit is ", kMaxVerifiers));
  }
  for (auto it = addresses.begin(); it != addresses.end(); ++it) {
    RETURN_IF_ERROR(ParseHostPort("--verifiers", *it, 1).status());
    if (std::find(addresses.begin(), it, *it) != it) {
      return InvalidArgumentError("--verifiers", absl::StrCat("names ", *it, " twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const ModelSource& source,
                                                         const ModelConfig& config) {
  if (source.has_byte_tokenizer()) return Tokenizer::CreateForBytes();
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(source.model_dir));
  if (tokenizer->vocab_size() > config.vocab_size) {
    return FileError(source.model_dir,
                     absl::StrCat("tokenizer.json has ", tokenizer->vocab_size(),
                                  " token ids, the model's vocab_size is ", config.vocab_size));
  }
  return tokenizer;
}

absl::StatusOr<Schedule> ScheduleFromFlags(const std::vector<std::string>& verifiers) {
  const std::string schedule = absl::GetFlag(FLAGS_schedule);
  if (schedule == "fast") return Schedule::kFast;
  if (schedule != "canonical") {
    return InvalidArgumentError("--schedule",
                                absl::StrCat("is \"", schedule, "\"; it may be fast or canonical"));
  }
  if (!verifiers.empty()) {
    return InvalidArgumentError("--verifiers", "are not needed with --schedule=canonical");
  }
  return Schedule::kCanonical;
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& source,
                                                 const ModelConfig& config, Schedule schedule,
                                                 int32_t context_limit,
                                                 const OpsFactory& create_ops) {
  const int32_t max_rows = absl::GetFlag(FLAGS_max_batch_tokens);
  // The self-test of the canonical schedule looks at the logits of every row.
  const PassLimits limits = {.max_rows = max_rows,
                             .max_logit_rows = schedule == Schedule::kCanonical
                                                   ? max_rows
                                                   : absl::GetFlag(FLAGS_max_batch_size),
                             .context_limit = context_limit};
  ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops,
                   create_ops({.device = absl::GetFlag(FLAGS_device),
                               .schedule = schedule,
                               .thread_count = absl::GetFlag(FLAGS_threads),
                               .max_rows = limits.max_rows,
                               .max_logit_rows = limits.max_logit_rows,
                               .max_table_entries = int64_t{absl::GetFlag(FLAGS_max_batch_size)} *
                                                    BlocksFor(context_limit),
                               .attention_shape = config.attention_shape(),
                               .class_slack = absl::GetFlag(FLAGS_class_slack),
                               .cuda_graphs = absl::GetFlag(FLAGS_cuda_graphs),
                               .plan_file = absl::GetFlag(FLAGS_gemm_plan_file)}));
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Load(source, limits, std::move(ops)));
  return model;
}

absl::StatusOr<std::unique_ptr<DecoderEngine>> CreateEngine(std::unique_ptr<Model> model,
                                                            std::optional<Authority> authority,
                                                            const Tokenizer& tokenizer,
                                                            const Clock& clock,
                                                            EngineObserver& observer) {
  const int32_t window_size = absl::GetFlag(FLAGS_window_size);
  DecoderEngineOptions options;
  options.core.scheduler = {.max_batch_tokens = absl::GetFlag(FLAGS_max_batch_tokens),
                            .max_batch_size = absl::GetFlag(FLAGS_max_batch_size),
                            .prefill_chunk = absl::GetFlag(FLAGS_prefill_chunk)};
  options.core.sessions.window_size = window_size;
  options.core.sessions.failover_timeout =
      std::chrono::milliseconds(absl::GetFlag(FLAGS_failover_timeout_ms));
  options.core.sessions.verdict_timeout =
      std::chrono::milliseconds(absl::GetFlag(FLAGS_verdict_timeout_ms));
  options.core.observer = &observer;
  options.core.authority = std::move(authority);
  options.core.max_inflight_windows = absl::GetFlag(FLAGS_max_inflight_windows);
  options.core.enable_prefix_caching = absl::GetFlag(FLAGS_enable_prefix_caching);
  options.core.doubt_margin = static_cast<float>(absl::GetFlag(FLAGS_doubt_margin));
  options.max_waiting_requests = absl::GetFlag(FLAGS_max_queue);
  const int32_t context_limit = model->limits().context_limit;
  ASSIGN_OR_RETURN(options.kv_block_count, KvBlockCount(absl::GetFlag(FLAGS_kv_size_mb),
                                                        model->kv_block_bytes(), context_limit));
  WindowOptions windows;
  windows.window_size = window_size;
  windows.first_window_size = std::min(windows.first_window_size, window_size);
  windows.min_idle_window_size = std::min(windows.min_idle_window_size, window_size);
  windows.max_age = std::chrono::milliseconds(absl::GetFlag(FLAGS_max_window_age_ms));
  return DecoderEngine::Create(options, std::move(model), tokenizer,
                               std::make_unique<AdaptiveWindowPolicy>(windows), clock);
}

std::vector<std::unique_ptr<VerifierClient>> CreateVerifierClients(
    const std::vector<std::string>& addresses, const RequestLimits& limits) {
  std::vector<std::unique_ptr<VerifierClient>> clients;
  for (const std::string& address : addresses) {
    clients.push_back(std::make_unique<VerifierClient>(
        VerifierClientOptions{.index = static_cast<int>(clients.size()),
                              .address = address,
                              .context_limit = limits.context_limit,
                              .vocab_size = limits.vocab_size}));
  }
  return clients;
}

// The operating system's random numbers, for seeds and request ids.
class RandomSource {
 public:
  uint64_t Next() {
    MutexLock lock(mutex_);
    const uint64_t high = device_();
    return high << 32 | device_();
  }

 private:
  Mutex mutex_;
  std::random_device device_ ABSL_GUARDED_BY(mutex_);
};

ServiceOptions DescribeService(const Model& model, const Tokenizer& tokenizer) {
  ServiceOptions options;
  options.limits = {.context_limit = model.limits().context_limit,
                    .vocab_size = static_cast<int32_t>(model.config().vocab_size),
                    .tokenizer_vocab_size = tokenizer.vocab_size()};
  options.defaults = ToRequestDefaults(model.generation_defaults());
  options.version = SELFSAME_VERSION;
  options.max_batch_size = absl::GetFlag(FLAGS_max_batch_size);
  options.window_size = absl::GetFlag(FLAGS_window_size);
  return options;
}

absl::Status Serve(ShutdownSignal& shutdown, const OpsFactory& create_ops) {
  ASSIGN_OR_RETURN(const ModelSource source, ParseModelSource(absl::GetFlag(FLAGS_model_dir),
                                                              absl::GetFlag(FLAGS_load_format)));
  RETURN_IF_ERROR(CheckFlags());
  const std::vector<std::string> addresses = absl::GetFlag(FLAGS_verifiers);
  RETURN_IF_ERROR(CheckVerifierAddresses(addresses));
  ASSIGN_OR_RETURN(const Schedule schedule, ScheduleFromFlags(addresses));
  MetricRegistry registry;
  ASSIGN_OR_RETURN(const std::unique_ptr<MetricsServer> metrics_server,
                   ServeMetrics(absl::GetFlag(FLAGS_metrics_listen), registry));
  DecoderMetrics metrics(registry);
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(source));
  ASSIGN_OR_RETURN(
      const int32_t context_limit,
      ResolveContextLimit(absl::GetFlag(FLAGS_context_limit), config.max_position_embeddings));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(source, config));
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                   LoadModel(source, config, schedule, context_limit, create_ops));
  std::optional<Authority> authority;
  if (schedule == Schedule::kCanonical) {
    // All rows that a step may have must fit a row count that passed.
    ASSIGN_OR_RETURN(authority, ProveAuthority(source, *model, model->limits().max_rows));
  }
  const bool is_authority = authority.has_value();

  ServiceOptions service_options = DescribeService(*model, *tokenizer);
  service_options.model = source.Name();
  service_options.arithmetic = model->ops().ArithmeticId();
  const auto clients = CreateVerifierClients(addresses, service_options.limits);
  std::vector<VerifierClient*> client_views;
  for (const auto& client : clients) client_views.push_back(client.get());

  const SteadyClock clock;
  absl::Status device_status;  // the engine's thread's, until it has ended
  ASSIGN_OR_RETURN(
      const std::unique_ptr<DecoderEngine> engine,
      CreateEngine(std::move(model), std::move(authority), *tokenizer, clock, metrics));
  RandomSource random;
  InferenceService service(std::move(service_options),
                           {.tokenizer = *tokenizer,
                            .engine = *engine,
                            .verifier_states =
                                [&client_views] {
                                  std::vector<VerifierState> states;
                                  for (const auto* client : client_views) {
                                    states.push_back(client->state());
                                  }
                                  return states;
                                },
                            .random = [&random] { return random.Next(); },
                            .on_refused =
                                [&metrics](bool is_deterministic, absl::StatusCode code) {
                                  metrics.OnRefused(is_deterministic, code);
                                }});
  engine->Start({client_views.begin(), client_views.end()},
                [&device_status](const absl::Status& status) {
                  device_status = status;
                  ShutdownSignal::Request();
                });
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Server> server,
      Server::Start(absl::GetFlag(FLAGS_listen), service, *engine, client_views, is_authority));
  PrintAddresses(server->address(), metrics_server.get());

  const std::string reason = shutdown.Wait();
  LogInfo(reason, ": draining");
  server->StopServing();
  engine->Drain(clock.Now() + std::chrono::milliseconds(absl::GetFlag(FLAGS_drain_timeout_ms)));
  engine->Stop();
  server->Shutdown(kFlushTime);
  LogInfo("stopped");
  return device_status;
}

}  // namespace

int RunDecoder(int argc, char** argv, const OpsFactory& create_ops) {
  return RunService(kProgram, "Serves selfsame.v1.Inference: selfsame-decoder --model_dir=DIR",
                    argc, argv,
                    [&](ShutdownSignal& shutdown) { return Serve(shutdown, create_ops); });
}

}  // namespace selfsame::decoder
