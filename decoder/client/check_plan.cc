#include "decoder/client/check_plan.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"
#include "common/limits.h"
#include "decoder/client/counter_random.h"

namespace selfsame::client {
namespace {

// Of each output token: their bits are part of what must not change.
constexpr int32_t kCheckTopLogprobs = 3;
constexpr int32_t kCheckPromptLogprobs = 1;
constexpr uint64_t kFirstSeed = 1000;
constexpr double kMaxOrdinaryShare = 0.98;
// Several blocks of the prefix cache, whatever the tokeniser.
constexpr char kSharedPrefix[] =
    "You are an assistant who answers the questions of travellers, students and cooks. Be brief, "
    "be kind, and say so when you do not know something. Give numbers with their units, names in "
    "full, and steps in the order in which they are to be taken. Now to the question. ";

absl::StatusOr<PhasePlan> ParsePhase(absl::string_view text) {
  PhasePlan plan;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (!absl::SimpleAtoi(parts.first, &plan.concurrency) || plan.concurrency < 1 ||
      plan.concurrency > kMaxClientConcurrency) {
    return InvalidArgumentError(
        "--phases", absl::StrCat("the concurrency in '", text, "' must be an integer from 1 to ",
                                 kMaxClientConcurrency));
  }
  // Written so that NaN fails.
  if (!absl::SimpleAtod(parts.second, &plan.ordinary_share) ||
      !(plan.ordinary_share >= 0.0 && plan.ordinary_share <= kMaxOrdinaryShare)) {
    return InvalidArgumentError(
        "--phases", absl::StrCat("the ordinary share in '", text, "' must be a number from 0 to ",
                                 kMaxOrdinaryShare));
  }
  return plan;
}

}  // namespace

Request ToRequest(const CheckCase& check_case, bool is_deterministic) {
  Request request;
  if (check_case.chat) {
    request.input = std::vector<ChatMessage>{{"user", check_case.prompt}};
  } else {
    request.input = check_case.prompt;
  }
  request.temperature = check_case.temperature;
  // Set, so that the model's own defaults do not make the answer of another server another one.
  request.top_k = 0;
  request.top_p = 1.0f;
  request.min_p = check_case.min_p;
  request.repetition_penalty = check_case.repetition_penalty;
  request.presence_penalty = check_case.presence_penalty;
  request.frequency_penalty = check_case.frequency_penalty;
  request.seed = check_case.seed;
  request.max_tokens = check_case.max_tokens;
  request.ignore_eos = check_case.ignore_eos;
  request.prompt_logprobs = check_case.prompt_logprobs;
  request.is_deterministic = is_deterministic;
  request.logprobs = true;
  request.top_logprobs = kCheckTopLogprobs;
  return request;
}

std::vector<CheckCase> BuildCases(const std::vector<std::string>& prompts,
                                  const CaseOptions& options) {
  std::vector<CheckCase> cases;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const bool has_prefix = options.shared_prefix && i / 2 % 2 == 1;
    cases.push_back({.prompt = has_prefix ? absl::StrCat(kSharedPrefix, prompts[i]) : prompts[i],
                     .chat = options.chat,
                     .temperature = i % 2 == 0 ? 0.0f : options.temperature,
                     .seed = kFirstSeed + i,
                     .max_tokens = options.max_tokens,
                     .ignore_eos = options.ignore_eos});
    if (i % 8 == 2 || i % 8 == 5) cases.back().prompt_logprobs = kCheckPromptLogprobs;
    if (i % 8 != 6 && i % 8 != 7) continue;
    CheckCase& penalised = cases.back();
    penalised.repetition_penalty = 1.1f;
    penalised.presence_penalty = 0.25f;
    penalised.frequency_penalty = 0.125f;
    if (i % 2 == 1) penalised.min_p = 0.05f;
  }
  return cases;
}

absl::StatusOr<std::vector<PhasePlan>> ParsePhases(std::string_view text) {
  std::vector<PhasePlan> plans;
  if (text.empty()) return plans;
  for (absl::string_view part : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    ASSIGN_OR_RETURN(PhasePlan plan, ParsePhase(part));
    plans.push_back(plan);
  }
  return plans;
}

std::vector<Job> PlanJobs(size_t case_count, const PhasePlan& plan, uint64_t order_seed) {
  std::vector<Job> jobs;
  for (size_t i = 0; i < case_count; ++i) jobs.push_back({i, true});
  const double ordinary_count =
      static_cast<double>(case_count) * plan.ordinary_share / (1.0 - plan.ordinary_share);
  for (int64_t i = 0; i < std::llround(ordinary_count); ++i) {
    jobs.push_back({static_cast<size_t>(i) % case_count, false});
  }
  CounterRandom random(order_seed);
  random.Shuffle(jobs);
  return jobs;
}

}  // namespace selfsame::client
