#include "bench/serve/verify_replay.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace selfsame::bench {
namespace {

SteadyTime::duration ToDuration(double seconds) {
  return std::chrono::duration_cast<SteadyTime::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

VerifyReplay::VerifyReplay(std::vector<RecordedRequest> requests)
    : requests_(std::move(requests)), sessions_(requests_.size()) {}

ReplayResult VerifyReplay::Run(decoder::VerifierLink& link) {
  {
    MutexLock lock(mutex_);
    while (!is_up_ && !is_unfit_) changed_.Wait(mutex_);
    if (!is_up_) {
      result_.failures = static_cast<int64_t>(requests_.size());
      return result_;
    }
  }
  const SteadyTime start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < requests_.size(); ++i) Schedule(i, start);
  while (!actions_.empty()) {
    const Action action = actions_.top();
    actions_.pop();
    std::this_thread::sleep_until(action.at);
    Perform(action, link);
  }
  MutexLock lock(mutex_);
  while (ended_ < requests_.size()) changed_.Wait(mutex_);
  return result_;
}

void VerifyReplay::Schedule(size_t index, SteadyTime start) {
  const RecordedRequest& request = requests_[index];
  const SteadyTime arrival = start + ToDuration(request.arrival_s);
  actions_.push({arrival, index, 0});
  for (int32_t window = 1; window <= WindowCount(request); ++window) {
    const decoder::Window cut = MakeWindow(index, window);
    const auto last = cut.first_position + static_cast<int32_t>(cut.candidate_ids.size()) -
                      static_cast<int32_t>(request.prompt_token_ids.size()) - 1;
    actions_.push(
        {arrival + ToDuration(request.first_token_s + last * request.token_s), index, window});
  }
}

// The first token comes with the opening verdict.
int32_t VerifyReplay::WindowCount(const RecordedRequest& request) const {
  const auto candidates = static_cast<int32_t>(request.output_token_ids.size()) - 1;
  return std::min(candidates, std::max(request.windows, 1));
}

decoder::Window VerifyReplay::MakeWindow(size_t index, int32_t window) const {
  const RecordedRequest& request = requests_[index];
  const int64_t candidates = static_cast<int64_t>(request.output_token_ids.size()) - 1;
  const int64_t count = WindowCount(request);
  const int64_t begin = 1 + candidates * (window - 1) / count;
  const int64_t end = 1 + candidates * window / count;
  decoder::Window result;
  result.session_id = index + 1;
  result.window_id = window;
  result.first_position = static_cast<int32_t>(request.prompt_token_ids.size() + begin);
  result.candidate_ids.assign(request.output_token_ids.begin() + begin,
                              request.output_token_ids.begin() + end);
  return result;
}

void VerifyReplay::Perform(const Action& action, decoder::VerifierLink& link) {
  const RecordedRequest& request = requests_[action.request];
  const uint64_t session_id = action.request + 1;
  if (action.window == 0) {
    decoder::SessionOpening opening;
    opening.session_id = session_id;
    opening.prompt_token_ids = request.prompt_token_ids;
    opening.temperature = request.temperature;
    opening.seed = request.seed;
    opening.max_tokens = static_cast<int32_t>(request.output_token_ids.size());
    link.OpenSession(std::move(opening));
    return;
  }
  {
    MutexLock lock(mutex_);
    Session& session = sessions_[action.request];
    while (!session.is_open && !session.has_ended) changed_.Wait(mutex_);
    if (session.has_ended) return;
  }
  link.SubmitWindow(MakeWindow(action.request, action.window));
}

void VerifyReplay::OnVerifierUp(int /*verifier*/, decoder::VerifierInfo /*info*/) {
  MutexLock lock(mutex_);
  is_up_ = true;
  changed_.NotifyAll();
}

void VerifyReplay::OnVerifierDown(int /*verifier*/, absl::Status status) {
  MutexLock lock(mutex_);
  result_.last_error = status.ToString();
  if (!is_up_) {
    is_unfit_ = status.code() == absl::StatusCode::kFailedPrecondition;
    changed_.NotifyAll();
    return;
  }
  for (size_t i = 0; i < sessions_.size(); ++i) End(i, false);
}

void VerifyReplay::OnVerdict(int /*verifier*/, decoder::Verdict verdict) {
  const size_t index = verdict.session_id - 1;
  MutexLock lock(mutex_);
  if (index >= sessions_.size()) return;
  if (verdict.window_id == 0) {
    sessions_[index].is_open = true;
    changed_.NotifyAll();
  } else if (verdict.outcome == decoder::Outcome::kCommit) {
    ++result_.windows;
  } else {
    result_.last_error = "a window was not committed: this verifier did not give these answers";
    End(index, false);
  }
  if (verdict.end != decoder::End::kNone) End(index, true);
}

void VerifyReplay::OnSessionError(int /*verifier*/, uint64_t session_id, absl::Status status) {
  MutexLock lock(mutex_);
  result_.last_error = status.ToString();
  if (session_id - 1 < sessions_.size()) End(session_id - 1, false);
}

void VerifyReplay::End(size_t index, bool is_success) {
  Session& session = sessions_[index];
  if (session.has_ended) return;
  session.has_ended = true;
  ++ended_;
  ++(is_success ? result_.sessions : result_.failures);
  changed_.NotifyAll();
}

}  // namespace selfsame::bench
