#include "verifier/engine/startup.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/canonical/authority.h"
#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "common/limits.h"
#include "common/model/warm_up.h"
#include "common/process/flags.h"

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

}  // namespace

absl::StatusOr<BackendOptions> DeviceFor(const StartupOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.source));
  ASSIGN_OR_RETURN(const int32_t context_limit,
                   ResolveContextLimit(options.context_limit, config.max_position_embeddings));
  const int32_t max_rows = options.verify_batch_size * options.window_size;
  const int64_t max_sequences = std::min(max_rows, options.max_sessions);
  return BackendOptions{.device = options.device,
                        .schedule = Schedule::kCanonical,
                        .thread_count = options.thread_count,
                        .max_rows = max_rows,
                        .max_logit_rows = max_rows,
                        .max_table_entries = max_sequences * BlocksFor(context_limit),
                        .attention_shape = config.attention_shape(),
                        .cuda_graphs = options.cuda_graphs,
                        .plan_file = options.plan_file};
}

absl::StatusOr<VerifierParts> StartUp(const StartupOptions& options, WindowPolicy policy) {
  ASSIGN_OR_RETURN(const BackendOptions device, DeviceFor(options));
  ASSIGN_OR_RETURN(auto ops, CreateOps(device));
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
  ASSIGN_OR_RETURN(Authority authority,
                   ProveAuthority(options.source, *parts.model, options.window_size));
  ASSIGN_OR_RETURN(auto kv, parts.model->CreateKvCache(block_count));
  RETURN_IF_ERROR(
      WarmUp(*parts.model, *kv, {.rungs = authority.rungs, .window_size = options.window_size}));
  VerifierInfo info{.fingerprint = std::move(authority.fingerprint),
                    .arithmetic = arithmetic_id,
                    .context_limit = context_limit,
                    .vocab_size = static_cast<int32_t>(config.vocab_size),
                    .max_window_size = options.window_size,
                    .max_sessions = options.max_sessions,
                    .rungs = std::move(authority.rungs)};
  parts.worker =
      std::make_unique<Worker>(*parts.model, std::move(kv), std::move(info), options.max_wait,
                               std::move(policy), options.enable_prefix_caching);
  return parts;
}

}  // namespace selfsame::verifier
