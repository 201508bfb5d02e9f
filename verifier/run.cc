#include "verifier/run.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/metrics/metrics.h"
#include "common/metrics/metrics_server.h"
#include "common/process/flags.h"
#include "common/process/shutdown_signal.h"
#include "common/rpc/grpc_server.h"
#include "common/rpc/service_main.h"
#include "verifier/engine/engine.h"
#include "verifier/engine/startup.h"
#include "verifier/metrics.h"
#include "verifier/service.h"

ABSL_FLAG(std::string, model_dir, "",
          "Hugging Face model directory. Required, but for the tokeniser of a synthetic model.");
ABSL_FLAG(std::string, load_format, "safetensors",
          "safetensors, or synthetic:SHAPE:SEED[:gain=G][:beta=B] for weights made from a seed in "
          "the shape of a real model: 8b, 3b or tiny.");
ABSL_FLAG(std::string, listen, "127.0.0.1:50052",
          "HOST:PORT to serve on; port 0 takes a free one.");
ABSL_FLAG(std::string, metrics_listen, "",
          "HOST:PORT to serve metrics on, at /metrics; port 0 takes a free one; empty: none.");
ABSL_FLAG(std::string, device, "cpu", "Where the model runs: cpu, cuda or cuda:N.");
ABSL_FLAG(bool, cuda_graphs, true, "CUDA: replay passes that come again as graphs.");
ABSL_FLAG(std::string, gemm_plan_file, "",
          "CUDA: file in which measured plans of matrix products are kept between runs.");
ABSL_FLAG(int32_t, threads, 0, "CPU threads of the forward pass; 0: one for each CPU.");
ABSL_FLAG(int32_t, kv_size_mb, 512, "Memory of the KV cache in MiB.");
ABSL_FLAG(int32_t, context_limit, 0,
          "Tokens of a session, prompt and output together; 0: the model's limit, at most 8192. "
          "Decoders must have the same.");
ABSL_FLAG(int32_t, verify_batch_size, 8,
          "Windows of full size in one pass; a pass has at most this times --window_size rows.");
ABSL_FLAG(int32_t, window_size, 64, "Candidates in one window, at most.");
ABSL_FLAG(int32_t, max_sessions, 256, "Sessions at a time, of all decoders together.");
ABSL_FLAG(
    bool, enable_prefix_caching, true,
    "Whether KV of finished and other sessions serves those that begin with the same tokens.");
ABSL_FLAG(int32_t, max_wait_ms, 2,
          "How long a pass that is not full waits for more rows; 0: start whenever idle.");

namespace selfsame::verifier {
namespace {

constexpr char kProgram[] = "selfsame-verifier";
// What the last answers may take to reach the decoders at the end.
constexpr std::chrono::milliseconds kFlushTime{2000};

absl::StatusOr<StartupOptions> OptionsFromFlags() {
  ASSIGN_OR_RETURN(ModelSource source, ParseModelSource(absl::GetFlag(FLAGS_model_dir),
                                                        absl::GetFlag(FLAGS_load_format)));
  RETURN_IF_ERROR(ParseHostPort("--listen", absl::GetFlag(FLAGS_listen), 0).status());
  const int32_t max_wait_ms = absl::GetFlag(FLAGS_max_wait_ms);
  RETURN_IF_ERROR(CheckFlagRange("--max_wait_ms", max_wait_ms, 0, kMaxTimeoutMs));
  return StartupOptions{.source = std::move(source),
                        .device = absl::GetFlag(FLAGS_device),
                        .cuda_graphs = absl::GetFlag(FLAGS_cuda_graphs),
                        .plan_file = absl::GetFlag(FLAGS_gemm_plan_file),
                        .thread_count = absl::GetFlag(FLAGS_threads),
                        .kv_size_mb = absl::GetFlag(FLAGS_kv_size_mb),
                        .context_limit = absl::GetFlag(FLAGS_context_limit),
                        .verify_batch_size = absl::GetFlag(FLAGS_verify_batch_size),
                        .window_size = absl::GetFlag(FLAGS_window_size),
                        .max_sessions = absl::GetFlag(FLAGS_max_sessions),
                        .max_wait = std::chrono::milliseconds(max_wait_ms),
                        .enable_prefix_caching = absl::GetFlag(FLAGS_enable_prefix_caching)};
}

absl::Status Serve(ShutdownSignal& shutdown, const WindowPolicy& policy) {
  ASSIGN_OR_RETURN(const StartupOptions options, OptionsFromFlags());
  MetricRegistry registry;
  ASSIGN_OR_RETURN(const std::unique_ptr<MetricsServer> metrics_server,
                   ServeMetrics(absl::GetFlag(FLAGS_metrics_listen), registry));
  ASSIGN_OR_RETURN(VerifierParts parts, StartUp(options, policy));
  VerifierMetrics metrics(registry, parts.worker->info());
  const SteadyClock clock;
  parts.worker->SetObserver(metrics, clock);
  absl::Status device_status;  // the engine's thread's, until it has ended
  Engine engine(std::move(parts.worker), [&device_status](const absl::Status& status) {
    device_status = status;
    ShutdownSignal::Request();
  });
  VerifierService service(engine);
  ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> server,
                   GrpcServer::Start(absl::GetFlag(FLAGS_listen), {&service}));
  server->SetServing("selfsame.v1.Verifier", true);
  PrintAddresses(server->address(), metrics_server.get());

  const std::string reason = shutdown.Wait();
  LogInfo(reason, ": draining");
  server->StopServing();
  engine.Drain(UnavailableError("the verifier is shutting down"));
  server->Shutdown(kFlushTime);
  LogInfo("stopped");
  return device_status;
}

}  // namespace

int RunVerifier(int argc, char** argv, const WindowPolicy& policy) {
  return RunService(kProgram, "Serves selfsame.v1.Verifier: selfsame-verifier --model_dir=DIR",
                    argc, argv, [&](ShutdownSignal& shutdown) { return Serve(shutdown, policy); });
}

}  // namespace selfsame::verifier
