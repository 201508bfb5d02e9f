#include "decoder/engine/sessions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMinBackoff{20};
constexpr milliseconds kMaxBackoff{1000};
constexpr int64_t kRetryAfterMs = 1000;

bool IsWorthARetry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

}  // namespace

Sessions::Sessions(const SessionOptions& options, const std::vector<VerifierLink*>& links,
                   WindowPolicy& policy, EngineObserver& observer)
    : options_(options), policy_(policy), observer_(observer) {
  for (VerifierLink* link : links) {
    Verifier verifier;
    verifier.link = link;
    verifier.last_error = UnavailableError("not connected yet");
    verifiers_.push_back(std::move(verifier));
  }
}

void Sessions::OnUp(int verifier, VerifierInfo info, SteadyTime now) {
  if (at(verifier).info) LoseSessions(verifier, UnavailableError("the verifier came anew"), now);
  if (info.max_window_size <= 0) info.max_window_size = options_.window_size;
  at(verifier).info = std::move(info);
  at(verifier).last_answer = now;
}

void Sessions::OnDown(int verifier, const absl::Status& status, SteadyTime now) {
  at(verifier).last_error = status;
  if (!at(verifier).info) return;
  at(verifier).info.reset();
  LoseSessions(verifier, status, now);
}

void Sessions::Break(int verifier, const absl::Status& reason, SteadyTime now) {
  // What still arrives of the old stream finds no session; a new one starts with OnUp.
  OnDown(verifier, reason, now);
  at(verifier).suspect_until = now + options_.verdict_timeout;
  at(verifier).link->Reset(reason);
}

void Sessions::LoseSessions(int verifier, const absl::Status& status, SteadyTime now) {
  std::vector<Request*> lost;
  for (const auto& [id, request] : sessions_) {
    if (request->verification->verifier == verifier) lost.push_back(request);
  }
  for (Request* request : lost) LoseSession(*request, status, now);
}

void Sessions::LoseSession(Request& request, const absl::Status& status, SteadyTime now) {
  Verification& verification = *request.verification;
  // The link may have a new stream already, with this session on it.
  at(verification.verifier).link->CloseSession(verification.speculation.session_id());
  verification.refused_by = verification.verifier;
  Forget(request);
  verification.last_error = status;
  verification.retry_at = now;
  if (!verification.unserved_since) verification.unserved_since = now;
}

std::optional<SteadyTime> Sessions::OwedSince(const Verification& verification) {
  if (!verification.speculation.is_open()) return verification.opened_at;
  if (verification.submitted_at.empty()) return std::nullopt;
  return verification.submitted_at.front();
}

milliseconds Sessions::VerdictPatience(const Verification& verification) const {
  return options_.verdict_timeout *
         (1 + verification.speculation.length() / kTokensOfVerdictTimeout);
}

SteadyTime Sessions::VerdictDeadline(const Verification& verification,
                                     SteadyTime owed_since) const {
  const milliseconds patience = VerdictPatience(verification);
  const SteadyTime last_answer = verifiers_[static_cast<size_t>(verification.verifier)].last_answer;
  return std::min(std::max(owed_since, last_answer) + patience,
                  owed_since + kVerdictTimeoutsOfSession * patience);
}

void Sessions::ExpireVerdicts(SteadyTime now) {
  std::vector<Request*> overdue;
  for (const auto& [id, request] : sessions_) {
    const auto owed_since = OwedSince(*request->verification);
    if (owed_since && now >= VerdictDeadline(*request->verification, *owed_since)) {
      overdue.push_back(request);
    }
  }
  for (Request* request : overdue) {
    const Verification& verification = *request->verification;
    if (!verification.has_session()) continue;  // lost with its verifier meanwhile
    const milliseconds patience = VerdictPatience(verification);
    const int verifier = verification.verifier;
    if (now - at(verifier).last_answer >= patience) {
      Break(verifier,
            UnavailableError(
                absl::StrCat("owes verdicts and gave none for ", patience.count(), " ms")),
            now);
    } else {
      LoseSession(
          *request,
          UnavailableError(absl::StrCat("the verifier gave the session no verdict for ",
                                        kVerdictTimeoutsOfSession * patience.count(), " ms")),
          now);
    }
  }
}

void Sessions::Forget(Request& request) {
  Verification& verification = *request.verification;
  sessions_.erase(verification.speculation.session_id());
  --at(verification.verifier).session_count;
  verification.verifier = -1;
  verification.submitted_at.clear();
  verification.speculation.OnSessionLost();
}

std::optional<Sessions::Applied> Sessions::OnVerdict(int verifier, const Verdict& verdict,
                                                     SteadyTime now) {
  const auto session = sessions_.find(verdict.session_id);
  if (session == sessions_.end()) return std::nullopt;
  Request& request = *session->second;
  Verification& verification = *request.verification;
  if (verification.verifier != verifier) return std::nullopt;
  auto effect = verification.speculation.ApplyVerdict(verdict);
  if (!effect.ok()) {
    Break(verifier, effect.status(), now);
    return std::nullopt;
  }
  at(verifier).last_answer = now;
  verification.unserved_since.reset();
  verification.backoff = milliseconds(0);
  if (verdict.window_id == 0 && !verification.cached_prompt_tokens) {
    verification.cached_prompt_tokens = std::min(verdict.cached_tokens, request.prompt_length());
  }
  verification.refused_by = -1;
  Report(verdict, *effect, verification, now);
  return Applied{&request, *std::move(effect)};
}

void Sessions::Report(const Verdict& verdict, const SpeculationEffect& effect,
                      Verification& verification, SteadyTime now) {
  VerdictReport report;
  report.is_opening = verdict.window_id == 0;
  report.outcome = verdict.outcome;
  report.is_rollback = effect.is_rollback;
  report.dropped = effect.dropped;
  if (report.is_opening) {
    report.latency = now - verification.opened_at;
  } else {
    report.latency = now - verification.submitted_at.front();
    verification.submitted_at.pop_front();
    // What cannot be is not believed.
    if (verdict.verifier_time && *verdict.verifier_time <= report.latency) {
      report.network_time = report.latency - *verdict.verifier_time;
    }
  }
  // A window that is decided starts where the committed tokens end, and the last token it commits
  // is the canonical one.
  if (verdict.outcome == Outcome::kRollback) {
    report.mismatch_index = static_cast<int32_t>(effect.tokens.size()) - 1;
  }
  observer_.OnVerdict(report);
}

int32_t Sessions::verifiers_up() const {
  return static_cast<int32_t>(
      std::count_if(verifiers_.begin(), verifiers_.end(),
                    [](const Verifier& verifier) { return verifier.info.has_value(); }));
}

Request* Sessions::OnSessionError(int verifier, uint64_t session_id, const absl::Status& status,
                                  SteadyTime now) {
  const auto session = sessions_.find(session_id);
  if (session == sessions_.end()) return nullptr;
  Request& request = *session->second;
  Verification& verification = *request.verification;
  if (verification.verifier != verifier) return nullptr;
  at(verifier).last_answer = now;
  Forget(request);
  if (!IsWorthARetry(status)) return &request;
  verification.last_error = status;
  verification.backoff = std::clamp(verification.backoff * 2, kMinBackoff, kMaxBackoff);
  const milliseconds hint(
      std::clamp<int64_t>(RetryAfterMsOf(status).value_or(0), 0, kMaxBackoff.count()));
  verification.retry_at = now + std::max(verification.backoff, hint);
  verification.refused_by = verifier;
  if (!verification.unserved_since) verification.unserved_since = now;
  return nullptr;
}

bool Sessions::IsFit(const Verifier& verifier, const Request& request) const {
  if (!verifier.info) return false;
  const Verification& verification = *request.verification;
  if (!verification.fingerprint.empty()) {
    return verifier.info->fingerprint == verification.fingerprint;
  }
  const auto& expected = request.params.expected_fingerprint;
  return !expected || verifier.info->fingerprint == *expected;
}

bool Sessions::HasRoom(const Verifier& verifier) const {
  const int32_t max_sessions = verifier.info->max_sessions;
  return max_sessions == 0 || verifier.session_count < max_sessions;
}

int Sessions::Choose(const Request& request, SteadyTime now) const {
  int best = -1;
  std::pair<bool, int32_t> best_load;
  for (size_t i = 0; i < verifiers_.size(); ++i) {
    const Verifier& verifier = verifiers_[i];
    if (!IsFit(verifier, request) || !HasRoom(verifier)) continue;
    const bool is_last_resort =
        now < verifier.suspect_until || static_cast<int>(i) == request.verification->refused_by;
    const std::pair load(is_last_resort, verifier.session_count);
    if (best >= 0 && load >= best_load) continue;
    best = static_cast<int>(i);
    best_load = load;
  }
  return best;
}

absl::StatusOr<bool> Sessions::Seek(Request& request, SteadyTime now) {
  Verification& verification = *request.verification;
  if (verification.fingerprint.empty() && request.params.group != nullptr) {
    verification.fingerprint = request.params.group->fingerprint;
  }
  const bool is_any_fit =
      std::any_of(verifiers_.begin(), verifiers_.end(),
                  [&](const Verifier& verifier) { return IsFit(verifier, request); });
  if (!is_any_fit && !verification.unserved_since) verification.unserved_since = now;
  // Full verifiers are a queue like any other for a request that has not begun.
  if (is_any_fit && !request.has_started) verification.unserved_since.reset();
  RETURN_IF_ERROR(CheckPatience(request, now));
  return now >= verification.retry_at && Choose(request, now) >= 0;
}

absl::Status Sessions::CheckPatience(const Request& request, SteadyTime now) const {
  const Verification& verification = *request.verification;
  if (!verification.unserved_since) return absl::OkStatus();
  const auto up = std::find_if(verifiers_.begin(), verifiers_.end(),
                               [](const Verifier& verifier) { return verifier.info.has_value(); });
  if (up != verifiers_.end() && verification.fingerprint.empty()) {
    return FailedPreconditionError(absl::StrCat("expected_fingerprint is ",
                                                request.params.expected_fingerprint.value_or(""),
                                                ", the verifier has ", up->info->fingerprint));
  }
  const bool is_none_fit = std::all_of(
      verifiers_.begin(), verifiers_.end(),
      [](const Verifier& verifier) { return absl::IsFailedPrecondition(verifier.last_error); });
  if (up == verifiers_.end() && is_none_fit && verification.fingerprint.empty()) {
    // Waiting would not make them fit.
    return FailedPreconditionError(
        absl::StrCat("no verifier is fit: ", verifiers_.front().last_error.message()));
  }
  if (now - *verification.unserved_since < options_.failover_timeout) return absl::OkStatus();
  const absl::Status& why =
      verification.last_error.ok() ? verifiers_.front().last_error : verification.last_error;
  const std::string message = absl::StrCat("no verifier for ", options_.failover_timeout.count(),
                                           " ms; the last one: ", absl::string_view(why.message()));
  if (absl::IsResourceExhausted(why)) {
    return ResourceExhaustedError(message, RetryAfterMsOf(why).value_or(kRetryAfterMs));
  }
  return UnavailableError(message);
}

void Sessions::Open(Request& request, SteadyTime now) {
  Verification& verification = *request.verification;
  const int verifier = Choose(request, now);
  SELFSAME_CHECK(verifier >= 0 && !verification.has_session());
  const uint64_t session_id = next_session_id_++;
  observer_.OnSessionOpened(request.has_started);
  verification.verifier = verifier;
  verification.opened_at = now;
  verification.fingerprint = at(verifier).info->fingerprint;
  if (request.params.group != nullptr) request.params.group->fingerprint = verification.fingerprint;
  verification.speculation.NewSession(session_id);
  sessions_[session_id] = &request;
  ++at(verifier).session_count;

  const GenerationRequest& params = request.params;
  const auto committed = verification.speculation.committed_tokens();
  SessionOpening opening;
  opening.session_id = session_id;
  opening.prompt_token_ids = params.prompt_token_ids;
  opening.committed_token_ids.assign(committed.begin(), committed.end());
  opening.temperature = params.temperature;
  opening.top_k = params.top_k;
  opening.top_p = params.top_p;
  opening.min_p = params.min_p;
  opening.logit_rules = params.logit_rules;
  opening.seed = params.seed;
  opening.choice_index = params.choice_index;
  opening.top_logprobs = params.top_logprobs;
  opening.prompt_logprobs = verification.speculation.wanted_prompt_logprobs();
  opening.max_tokens = params.max_tokens;
  opening.stop_token_ids = params.stop_token_ids;
  opening.expected_fingerprint = verification.fingerprint;
  at(verifier).link->OpenSession(std::move(opening));
}

void Sessions::Close(Request& request) {
  if (!request.verification || !request.verification->has_session()) return;
  const uint64_t session_id = request.verification->speculation.session_id();
  VerifierLink* link = at(request.verification->verifier).link;
  Forget(request);
  link->CloseSession(session_id);
}

bool Sessions::WantsCandidate(const Verification& verification) const {
  const Speculation& speculation = verification.speculation;
  return speculation.WantsCandidate(
      policy_.FullSize(speculation.counters().windows_since_rollback));
}

void Sessions::CutWindows(SteadyTime now) {
  // Idleness is judged before the first cut, so that all sessions get their share of the next pass.
  std::vector<int32_t> in_flight(verifiers_.size());
  for (const auto& [id, request] : sessions_) {
    in_flight[static_cast<size_t>(request->verification->verifier)] +=
        request->verification->speculation.windows_in_flight();
  }
  for (const auto& [id, request] : sessions_) {
    const int verifier = request->verification->verifier;
    CutWindowsOf(*request, in_flight[static_cast<size_t>(verifier)] == 0, now);
  }
}

void Sessions::CutWindowsOf(Request& request, bool is_verifier_idle, SteadyTime now) {
  Verification& verification = *request.verification;
  Speculation& speculation = verification.speculation;
  const Verifier& verifier = at(verification.verifier);
  const int32_t max_size = std::min(options_.window_size, verifier.info->max_window_size);
  while (speculation.is_open() && speculation.unsubmitted_count() > 0 && speculation.credit() > 0) {
    WindowQuery query;
    query.unsubmitted = speculation.unsubmitted_count();
    query.credit = speculation.credit();
    query.has_proposed_end = speculation.has_proposed_end();
    query.has_doubt = verification.has_doubt;
    query.is_paused = !WantsCandidate(verification);
    query.is_verifier_idle = is_verifier_idle;
    query.oldest_age =
        std::chrono::duration_cast<milliseconds>(now - verification.oldest_unsubmitted);
    query.windows_since_rollback = speculation.counters().windows_since_rollback;
    const int32_t size = policy_.Cut(query);
    if (size <= 0) return;
    Window window = *speculation.CutWindow(std::min(size, max_size));
    observer_.OnWindow(static_cast<int32_t>(window.candidate_ids.size()));
    verification.submitted_at.push_back(now);
    verifier.link->SubmitWindow(std::move(window));
    verification.oldest_unsubmitted = now;
    verification.has_doubt = false;
  }
}

std::optional<SteadyTime> Sessions::NextWake(const Request& request, SteadyTime now) const {
  const Verification& verification = *request.verification;
  if (!verification.has_session()) {
    std::optional<SteadyTime> wake;
    if (verification.unserved_since) {
      wake = *verification.unserved_since + options_.failover_timeout;
    }
    if (verification.retry_at > now) {
      wake = wake ? std::min(*wake, verification.retry_at) : verification.retry_at;
    }
    return wake;
  }
  std::optional<SteadyTime> wake;
  if (const auto owed_since = OwedSince(verification)) {
    wake = VerdictDeadline(verification, *owed_since);
  }
  const Speculation& speculation = verification.speculation;
  const auto max_age = policy_.max_age();
  if (max_age && speculation.is_open() && speculation.unsubmitted_count() > 0 &&
      speculation.credit() > 0) {
    const SteadyTime due = verification.oldest_unsubmitted + *max_age;
    wake = wake ? std::min(*wake, due) : due;
  }
  return wake;
}

}  // namespace selfsame::decoder
