#include "verifier/engine/startup.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/process/flags.h"
#include "kernels/backend.h"
#include "verifier/engine/fingerprint.h"
#include "verifier/engine/pass_builder.h"
#include "verifier/engine/self_test.h"

namespace selfsame::verifier {
namespace {

absl::Status CheckOptions(const StartupOptions& options) {
  RETURN_IF_ERROR(CheckFlagRange("--threads", options.thread_count, 0, kMaxThreads));
  RETURN_IF_ERROR(CheckFlagRange("--window_size", options.window_size, 1, kMaxWindowSize));
  RETURN_IF_ERROR(
      CheckFlagRange("--verify_batch_size", options.verify_batch_size, 1, kMaxVerifyBatchSize));
  RETURN_IF_ERROR(CheckFlagRange("--kv_size_mb", options.kv_size_mb, 1, kMaxKvSizeMb));
  return CheckFlagRange("--max_sessions", options.max_sessions, 1, kMaxSessions);
}

absl::StatusOr<SelfTestReport> TestRungs(const StartupOptions& options, Model& model) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<int32_t> rungs = DefaultRungs(model.limits().max_rows);
  ASSIGN_OR_RETURN(SelfTestReport report, RunSelfTest(model, rungs));
  for (const std::string& failure : report.failures) LogWarning("self-test: ", failure);
  if (report.rungs.empty() || report.rungs.back() < options.window_size) {
    return FailedPreconditionError(
        absl::StrCat("self-test: no row count that holds a window of ", options.window_size,
                     " gives the same bits whatever the batch: ", report.failures.back()));
  }
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  LogInfo("self-test passed at ", report.rungs.size(), " of ", rungs.size(), " row counts in ",
          std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count(), " ms");
  return report;
}

}  // namespace

absl::StatusOr<VerifierParts> StartUp(const StartupOptions& options, WindowPolicy policy) {
  RETURN_IF_ERROR(CheckOptions(options));
  const int32_t max_rows = options.verify_batch_size * options.window_size;
  ASSIGN_OR_RETURN(auto ops, CreateOps({.device = options.device,
                                        .schedule = Schedule::kCanonical,
                                        .thread_count = options.thread_count,
                                        .max_rows = max_rows,
                                        .max_logit_rows = max_rows,
                                        .plan_file = options.plan_file}));
  return StartUpOn(std::move(ops), options, std::move(policy));
}

absl::StatusOr<VerifierParts> StartUpOn(std::unique_ptr<Ops> ops, const StartupOptions& options,
                                        WindowPolicy policy) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.source));
  ASSIGN_OR_RETURN(const int32_t context_limit,
                   ResolveContextLimit(options.context_limit, config.max_position_embeddings));
  const int32_t max_rows = options.verify_batch_size * options.window_size;
  const std::string arithmetic_id = ops->ArithmeticId();
  const PassLimits limits{
      .max_rows = max_rows, .max_logit_rows = max_rows, .context_limit = context_limit};
  VerifierParts parts;
  ASSIGN_OR_RETURN(parts.model, Model::Load(options.source, limits, std::move(ops)));
  ASSIGN_OR_RETURN(const int32_t block_count,
                   KvBlockCount(options.kv_size_mb, parts.model->kv_block_bytes(), context_limit));
  ASSIGN_OR_RETURN(SelfTestReport report, TestRungs(options, *parts.model));
  ASSIGN_OR_RETURN(
      std::string fingerprint,
      ComputeFingerprint(options.source, *parts.model, arithmetic_id, report.golden_digest));
  ASSIGN_OR_RETURN(auto kv, parts.model->CreateKvCache(block_count));
  VerifierInfo info{.fingerprint = std::move(fingerprint),
                    .arithmetic = arithmetic_id,
                    .context_limit = context_limit,
                    .vocab_size = static_cast<int32_t>(config.vocab_size),
                    .max_window_size = options.window_size,
                    .max_sessions = options.max_sessions,
                    .rungs = std::move(report.rungs)};
  parts.worker = std::make_unique<Worker>(*parts.model, std::move(kv), std::move(info),
                                          options.max_wait, std::move(policy));
  return parts;
}

}  // namespace selfsame::verifier
