#include "tests/sim/sim_verifier.h"

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/canonical/rungs.h"
#include "common/check.h"
#include "common/errors.h"

namespace selfsame::sim {

class SimVerifier::Sink final : public verifier::StreamSink {
 public:
  Sink(SimVerifier& owner, uint64_t stream_id) : owner_(owner), stream_id_(stream_id) {}
  void OnVerdict(verifier::Verdict verdict) override {
    owner_.Answer(stream_id_, std::move(verdict));
  }
  void OnSessionError(uint64_t session_id, const absl::Status& status) override {
    owner_.Answer(stream_id_, SessionFailure{session_id, status});
  }
  void OnInboxRoom() override {}
  void OnStreamEnd(const absl::Status& status) override {
    owner_.Answer(stream_id_, StreamEnd{status});
  }

 private:
  SimVerifier& owner_;
  const uint64_t stream_id_;
};

SimVerifier::SimVerifier(World& world, int index, const VerifierSetup& setup,
                         verifier::WindowPolicy policy, Random random)
    : world_(world), index_(index), setup_(setup), policy_(std::move(policy)), random_(random) {}

void SimVerifier::Start(uint64_t weights) {
  SELFSAME_CHECK(!is_up());
  world_.Trace("verifier up", {index_, static_cast<int64_t>(weights)});
  const PassLimits limits{.max_rows = setup_.max_rows,
                          .max_logit_rows = setup_.max_rows,
                          .context_limit = setup_.context_limit};
  model_ = std::make_unique<SimModel>(world_, limits, weights, random_.Fork(), nullptr);
  verifier::VerifierInfo info;
  info.fingerprint = absl::StrCat("F", weights);
  info.context_limit = setup_.context_limit;
  info.vocab_size = kVocabSize;
  info.max_window_size = setup_.max_window_size;
  info.max_sessions = setup_.max_sessions;
  info.rungs = DefaultRungs(setup_.max_rows);
  worker_ = std::make_unique<verifier::Worker>(
      *model_, SimModel::CreateCache(setup_.kv_block_count, random_.Fork()), std::move(info),
      setup_.max_wait, policy_, setup_.enable_prefix_caching);
}

void SimVerifier::Crash() {
  SELFSAME_CHECK(is_up());
  world_.Trace("verifier crash", {index_});
  AddTotals();
  ++life_;
  inbox_.clear();
  wake_at_.reset();
  worker_.reset();
  const std::map<uint64_t, Stream> streams = std::exchange(streams_, {});
  for (const auto& [id, stream] : streams) stream.on_crash();
}

void SimVerifier::Drain() {
  SELFSAME_CHECK(is_up());
  world_.Trace("verifier drain", {index_});
  while (!inbox_.empty()) {
    Dispatch(std::move(inbox_.front()));
    inbox_.pop_front();
  }
  worker_->EndAll(UnavailableError("the verifier is shutting down"));
  AddTotals();
  ++life_;
  wake_at_.reset();
  worker_.reset();
  streams_.clear();
}

void SimVerifier::AddTotals() {
  const verifier::WorkerStats stats = worker_->stats();
  totals_.passes += stats.passes;
  totals_.rows += stats.rows;
  totals_.padded_rows += stats.padded_rows;
  totals_.evictions += stats.evictions;
  totals_.prefix_queries += stats.prefix_queries;
  totals_.prefix_hits += stats.prefix_hits;
}

uint64_t SimVerifier::OpenStream(AnswerSink sink, std::function<void()> on_crash) {
  const uint64_t id = next_stream_id_++;
  streams_[id] = {
      .sink = std::move(sink), .on_crash = std::move(on_crash), .sessions = {}, .misused = {}};
  worker_->OpenStream(id, std::make_shared<Sink>(*this, id));
  return id;
}

void SimVerifier::Post(uint64_t stream_id, VerifierMessage message) {
  Enqueue({stream_id, std::move(message)});
}

void SimVerifier::CloseStream(uint64_t stream_id) { Enqueue({stream_id, Closed{}}); }

void SimVerifier::Enqueue(Entry entry) {
  if (!streams_.contains(entry.stream_id)) return;
  inbox_.push_back(std::move(entry));
  ScheduleWake(world_.Now());
}

void SimVerifier::ScheduleWake(SteadyTime time) {
  time = std::max(time, busy_until_);
  if (wake_at_ && *wake_at_ <= time) return;
  wake_at_ = time;
  world_.At(time, [this, time, life = life_] {
    if (life == life_ && wake_at_ == time) Wake();
  });
}

void SimVerifier::Wake() {
  wake_at_.reset();
  pass_time_ = Micros(1 + random_.Below(static_cast<int32_t>(setup_.max_pass_time.count())));
  while (!inbox_.empty()) {
    Dispatch(std::move(inbox_.front()));
    inbox_.pop_front();
  }
  const int64_t passes_before = worker_->stats().passes;
  const auto next = worker_->RunPass(world_.Now());
  SELFSAME_CHECK(next.ok());
  if (worker_->stats().passes > passes_before) {
    busy_until_ = world_.Now() + pass_time_;
    world_.Trace("pass", {index_, worker_->stats().rows});
  } else if (*next && **next <= world_.Now()) {
    world_.Fail("the worker asks to be called again at once without having run a pass");
    return;
  }
  if (*next) ScheduleWake(**next);
}

void SimVerifier::Dispatch(Entry entry) {
  const uint64_t id = entry.stream_id;
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  if (std::holds_alternative<Closed>(entry.what)) {
    worker_->CloseStream(id);
    streams_.erase(found);
    return;
  }
  Stream& stream = found->second;
  std::visit(
      [&](auto message) {
        using Message = decltype(message);
        const uint64_t session_id = message.session_id;
        if constexpr (std::is_same_v<Message, verifier::SessionOpening>) {
          if (!stream.sessions.emplace(session_id, Session()).second) {
            stream.misused.insert(session_id);
          }
          worker_->OpenSession(id, std::move(message), world_.Now());
        } else if constexpr (std::is_same_v<Message, verifier::Window>) {
          const auto session = stream.sessions.find(session_id);
          if (session != stream.sessions.end()) {
            session->second.windows.push_back(message.window_id);
          }
          worker_->SubmitWindow(id, std::move(message), world_.Now());
        } else {
          stream.sessions.erase(session_id);
          worker_->CloseSession(id, session_id);
        }
      },
      std::get<VerifierMessage>(std::move(entry.what)));
}

void SimVerifier::Answer(uint64_t stream_id, VerifierAnswer answer) {
  const auto found = streams_.find(stream_id);
  if (found == streams_.end()) {
    world_.Fail("an answer to a closed stream");
    return;
  }
  Stream& stream = found->second;
  if (const auto* verdict = std::get_if<verifier::Verdict>(&answer)) {
    CheckVerdict(stream, *verdict);
  } else if (const auto* failure = std::get_if<SessionFailure>(&answer)) {
    world_.Trace("session error", {index_, static_cast<int64_t>(failure->session_id),
                                   static_cast<int64_t>(failure->status.code())});
    stream.sessions.erase(failure->session_id);
  }
  // Answers leave at the end of the pass, and none overtakes another.
  answers_leave_at_ = std::max(answers_leave_at_, world_.Now() + pass_time_);
  const AnswerSink sink = stream.sink;
  world_.At(answers_leave_at_, [sink, answer = std::move(answer)] { sink(answer); });
}

void SimVerifier::CheckVerdict(Stream& stream, const verifier::Verdict& verdict) {
  world_.Trace("verdict",
               {index_, static_cast<int64_t>(verdict.session_id),
                static_cast<int64_t>(verdict.window_id), static_cast<int64_t>(verdict.outcome),
                verdict.epoch, verdict.committed_length, static_cast<int64_t>(verdict.end)});
  if (stream.misused.contains(verdict.session_id)) return;
  const auto found = stream.sessions.find(verdict.session_id);
  if (found == stream.sessions.end()) {
    world_.Fail(absl::StrCat("a verdict for session ", verdict.session_id, ", which is not open"));
    return;
  }
  Session& session = found->second;
  if (verdict.window_id == 0) {
    if (session.is_open) world_.Fail("a second opening verdict");
    session.is_open = true;
    return;
  }
  if (session.windows.empty() || session.windows.front() != verdict.window_id) {
    world_.Fail(absl::StrCat("session ", verdict.session_id, ": window ", verdict.window_id,
                             " has its verdict out of turn, or a second one"));
    return;
  }
  session.windows.pop_front();
}

void SimVerifier::CheckEmpty() {
  for (const auto& [id, stream] : streams_) {
    for (const auto& [session_id, session] : stream.sessions) {
      world_.Fail(absl::StrCat("verifier ", index_, ", stream ", id, ": session ", session_id,
                               " is left, with ", session.windows.size(), " open windows"));
    }
  }
  if (!is_up()) return;
  AddTotals();
  const verifier::WorkerStats stats = worker_->stats();
  if (stats.sessions != 0) world_.Fail(absl::StrCat(stats.sessions, " sessions are left"));
  if (stats.free_kv_blocks != setup_.kv_block_count) {
    world_.Fail(absl::StrCat("verifier ", index_, " has lost ",
                             setup_.kv_block_count - stats.free_kv_blocks, " blocks"));
  }
}

}  // namespace selfsame::sim
