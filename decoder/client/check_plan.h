#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "decoder/client/inference_api.h"

namespace selfsame::client {

// One question of the check: everything that a deterministic answer is a function of, beside the
// server's fingerprint.
struct CheckCase {
  std::string prompt;
  bool chat = true;  // sent as a user's message, in the model's chat template
  float temperature = 0.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::optional<int32_t> prompt_logprobs{};
  uint64_t seed = 0;
  int32_t max_tokens = 0;
  bool ignore_eos = true;

  bool operator==(const CheckCase&) const = default;
};

Request ToRequest(const CheckCase& check_case, bool is_deterministic);

// What the cases have in common.
struct CaseOptions {
  bool chat = true;
  float temperature = 0.8f;  // of the seeded half
  int32_t max_tokens = 96;
  bool ignore_eos = true;
  bool shared_prefix = false;  // every second prompt begins with the same paragraph
};

// One case a prompt: even ones greedy, odd ones seeded, each with a seed of its own. One in four of
// either kind has penalties, the seeded one min-p too; one in eight of either asks for the logprobs
// of its prompt.
std::vector<CheckCase> BuildCases(const std::vector<std::string>& prompts,
                                  const CaseOptions& options);

// A replay of all cases at one concurrency, among ordinary requests.
struct PhasePlan {
  int concurrency = 1;
  double ordinary_share = 0.0;  // of all requests of the phase; in [0, 0.98]
};

// "CONCURRENCY:SHARE,...", for example "2:0.5,8:0.25". Empty: no phases.
absl::StatusOr<std::vector<PhasePlan>> ParsePhases(std::string_view text);

struct Job {
  size_t case_index = 0;
  bool is_deterministic = false;
};

// Every case once as a deterministic request, and as many ordinary requests, going round the cases,
// as the share asks for; in an order that `order_seed` decides.
std::vector<Job> PlanJobs(size_t case_count, const PhasePlan& plan, uint64_t order_seed);

}  // namespace selfsame::client
