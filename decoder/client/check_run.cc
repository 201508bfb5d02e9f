#include "decoder/client/check_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/mutex.h"

namespace selfsame::client {
namespace {

constexpr int kReportedFailuresPerPhase = 5;
constexpr int kProgressLinesPerPhase = 4;

class CheckRunner {
 public:
  CheckRunner(InferenceApi& server, const CheckOptions& options,
              const ProgressCallback& on_progress)
      : server_(server), options_(options), on_progress_(on_progress) {}

  absl::StatusOr<CheckResult> Run();

 private:
  using Answers = std::vector<absl::StatusOr<Answer>>;
  // The answer each case should get, where one is known.
  using Expected = std::vector<std::optional<Answer>>;

  // Sends the jobs, `concurrency` at a time, in order. Fills in what can be counted without
  // comparing.
  Answers Send(const std::vector<Job>& jobs, PhaseFigures& figures);
  void Compare(const std::vector<Job>& jobs, const Answers& answers, PhaseFigures& figures);
  absl::Status CheckFingerprints(const std::vector<Job>& jobs, const Answers& answers);
  absl::Status RunOneAtATime(bool is_deterministic);
  absl::Status RunPhase(const PhasePlan& plan, uint64_t order_seed);
  void ReportFailure(const PhaseFigures& figures, const Job& job, const std::string& what);

  InferenceApi& server_;
  const CheckOptions& options_;
  const ProgressCallback& on_progress_;
  Expected expected_deterministic_;
  Expected expected_ordinary_;
  CheckResult result_;
};

void Count(const Answer& answer, RequestFigures& requests, PhaseFigures& figures) {
  requests.output_tokens += static_cast<int64_t>(answer.token_ids.size());
  figures.windows += answer.windows;
  figures.rollbacks += answer.rollbacks;
  figures.rolled_back_tokens += answer.rolled_back_tokens;
  figures.redecoded_tokens += answer.redecoded_tokens;
  figures.cached_prompt_tokens += answer.cached_prompt_tokens;
  figures.verifier_cached_prompt_tokens += answer.verifier_cached_prompt_tokens;
}

CheckRunner::Answers CheckRunner::Send(const std::vector<Job>& jobs, PhaseFigures& figures) {
  Answers answers(jobs.size(), UnavailableError("not sent"));
  std::atomic<size_t> next = 0;
  Mutex progress_mutex;
  size_t done = 0;
  const size_t progress_step = std::max<size_t>(1, jobs.size() / kProgressLinesPerPhase);
  const auto start = std::chrono::steady_clock::now();
  const auto work = [&] {
    for (size_t i = next++; i < jobs.size(); i = next++) {
      const Job& job = jobs[i];
      answers[i] = server_.Generate(ToRequest(options_.cases[job.case_index], job.is_deterministic),
                                    nullptr);
      const MutexLock lock(progress_mutex);
      if (++done % progress_step == 0 || done == jobs.size()) {
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        on_progress_(absl::StrFormat("%s: %d of %d requests, %.1f s", figures.name, done,
                                     jobs.size(), elapsed.count()));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < figures.concurrency; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return answers;
}

void CheckRunner::ReportFailure(const PhaseFigures& figures, const Job& job,
                                const std::string& what) {
  const CheckCase& check_case = options_.cases[job.case_index];
  on_progress_(absl::StrFormat("%s: %s request %d (temperature %g, seed %d): %s", figures.name,
                               job.is_deterministic ? "deterministic" : "ordinary", job.case_index,
                               check_case.temperature, check_case.seed, what));
}

void CheckRunner::Compare(const std::vector<Job>& jobs, const Answers& answers,
                          PhaseFigures& figures) {
  int reported = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    RequestFigures& requests = job.is_deterministic ? figures.deterministic : figures.ordinary;
    ++requests.requests;
    if (!answers[i].ok()) {
      ++requests.errors;
      if (reported++ < kReportedFailuresPerPhase) {
        ReportFailure(figures, job, answers[i].status().ToString());
      }
      continue;
    }
    Count(*answers[i], requests, figures);
    const auto& expected =
        (job.is_deterministic ? expected_deterministic_ : expected_ordinary_)[job.case_index];
    if (!expected) continue;
    const std::optional<Difference> difference = FindDifference(*expected, *answers[i]);
    if (!difference) continue;
    if (difference->logprobs) ++requests.logprob_divergences;
    if (!job.is_deterministic && !difference->tokens) continue;
    ++requests.divergences;
    requests.first_positions.push_back(job.is_deterministic ? difference->position
                                                            : difference->token_position);
    if (job.is_deterministic && reported++ < kReportedFailuresPerPhase) {
      ReportFailure(figures, job, difference->ToString());
    }
  }
}

// The answers carry the fingerprint that counts; this only spares the user the wait for the first
// of them.
absl::Status CheckVerifiers(const ServerInfo& info, const std::string& fingerprint) {
  bool connected = false;
  for (const VerifierStatus& verifier : info.verifiers) {
    if (verifier.connected && verifier.fingerprint == fingerprint) return absl::OkStatus();
    connected = connected || verifier.connected;
  }
  if (!connected) return absl::OkStatus();
  return FailedPreconditionError(absl::StrCat("none of the server's verifiers has the fingerprint ",
                                              fingerprint,
                                              " of the reference: its answers are outside the "
                                              "promise and cannot be compared"));
}

absl::Status CheckRunner::CheckFingerprints(const std::vector<Job>& jobs, const Answers& answers) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (!jobs[i].is_deterministic || !answers[i].ok()) continue;
    if (result_.fingerprint.empty()) result_.fingerprint = answers[i]->fingerprint;
    if (answers[i]->fingerprint != result_.fingerprint) {
      return FailedPreconditionError(absl::StrCat(
          "the server's fingerprint is ", answers[i]->fingerprint, ", that of the reference ",
          result_.fingerprint, ": its answers are outside the promise and were not compared"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRunner::RunOneAtATime(bool is_deterministic) {
  PhaseFigures figures;
  figures.name = is_deterministic ? "one at a time" : "one at a time, ordinary";
  figures.ordinary_share = is_deterministic ? 0.0 : 1.0;
  std::vector<Job> jobs;
  for (size_t i = 0; i < options_.cases.size(); ++i) jobs.push_back({i, is_deterministic});
  const Answers answers = Send(jobs, figures);
  RETURN_IF_ERROR(CheckFingerprints(jobs, answers));
  Compare(jobs, answers, figures);
  result_.phases.push_back(std::move(figures));

  Expected& expected = is_deterministic ? expected_deterministic_ : expected_ordinary_;
  bool all_ok = true;
  for (size_t i = 0; i < jobs.size(); ++i) {
    all_ok = all_ok && answers[i].ok();
    if (answers[i].ok() && !expected[i]) expected[i] = *answers[i];
  }
  if (all_ok) {
    auto& saved = is_deterministic ? result_.reference : result_.ordinary_reference;
    for (const auto& answer : answers) saved.push_back(*answer);
  }
  return absl::OkStatus();
}

absl::Status CheckRunner::RunPhase(const PhasePlan& plan, uint64_t order_seed) {
  PhaseFigures figures;
  figures.concurrency = plan.concurrency;
  figures.ordinary_share = plan.ordinary_share;
  figures.name =
      absl::StrFormat("%d at a time, %.0f%% ordinary", plan.concurrency, plan.ordinary_share * 100);
  const std::vector<Job> jobs = PlanJobs(options_.cases.size(), plan, order_seed);
  const Answers answers = Send(jobs, figures);
  RETURN_IF_ERROR(CheckFingerprints(jobs, answers));
  Compare(jobs, answers, figures);
  result_.phases.push_back(std::move(figures));
  return absl::OkStatus();
}

absl::StatusOr<CheckResult> CheckRunner::Run() {
  RETURN_IF_ERROR(ValidateOptions(options_));
  ASSIGN_OR_RETURN(const ServerInfo info, server_.GetServerInfo());
  result_.model = info.model;
  expected_deterministic_.resize(options_.cases.size());
  expected_ordinary_.resize(options_.cases.size());
  if (options_.reference) {
    RETURN_IF_ERROR(CheckSameCases(*options_.reference, options_.cases));
    RETURN_IF_ERROR(CheckVerifiers(info, options_.reference->fingerprint));
    result_.fingerprint = options_.reference->fingerprint;
    expected_deterministic_.assign(options_.reference->answers.begin(),
                                   options_.reference->answers.end());
  }
  if (options_.phases_only) {
    const std::vector<Answer>& ordinary = options_.reference->ordinary_answers;
    std::copy(ordinary.begin(), ordinary.end(), expected_ordinary_.begin());
  } else {
    RETURN_IF_ERROR(RunOneAtATime(/*is_deterministic=*/true));
    RETURN_IF_ERROR(RunOneAtATime(/*is_deterministic=*/false));
  }
  for (size_t i = 0; i < options_.phases.size(); ++i) {
    RETURN_IF_ERROR(RunPhase(options_.phases[i], options_.order_seed + i));
  }
  return std::move(result_);
}

}  // namespace

void RequestFigures::Add(const RequestFigures& other) {
  requests += other.requests;
  errors += other.errors;
  divergences += other.divergences;
  logprob_divergences += other.logprob_divergences;
  output_tokens += other.output_tokens;
  first_positions.insert(first_positions.end(), other.first_positions.begin(),
                         other.first_positions.end());
}

void PhaseFigures::Add(const PhaseFigures& other) {
  deterministic.Add(other.deterministic);
  ordinary.Add(other.ordinary);
  windows += other.windows;
  rollbacks += other.rollbacks;
  rolled_back_tokens += other.rolled_back_tokens;
  redecoded_tokens += other.redecoded_tokens;
  cached_prompt_tokens += other.cached_prompt_tokens;
  verifier_cached_prompt_tokens += other.verifier_cached_prompt_tokens;
  seconds += other.seconds;
}

double PhaseFigures::tokens_per_second() const {
  return seconds > 0 ? static_cast<double>(output_tokens()) / seconds : 0.0;
}

PhaseFigures CheckResult::Total() const {
  PhaseFigures total;
  total.name = "total";
  for (const PhaseFigures& phase : phases) total.Add(phase);
  return total;
}

absl::Status ValidateOptions(const CheckOptions& options) {
  if (!options.phases_only) return absl::OkStatus();
  // Else nothing, or nothing ordinary, would be compared, and nothing could fail.
  constexpr std::string_view kFlag = "--phases_only";
  if (!options.reference) return InvalidArgumentError(kFlag, "needs --reference");
  if (options.phases.empty()) {
    return InvalidArgumentError(kFlag, "needs at least one phase in --phases");
  }
  const bool has_ordinary =
      std::any_of(options.phases.begin(), options.phases.end(),
                  [](const PhasePlan& plan) { return plan.ordinary_share > 0.0; });
  if (has_ordinary && options.reference->ordinary_answers.empty()) {
    return InvalidArgumentError(kFlag,
                                "needs a --reference with ordinary answers when a phase has "
                                "ordinary requests; this one has none to compare theirs with");
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckResult> RunCheckPhases(InferenceApi& server, const CheckOptions& options,
                                           const ProgressCallback& on_progress) {
  return CheckRunner(server, options, on_progress).Run();
}

}  // namespace selfsame::client
