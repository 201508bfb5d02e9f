#include "verifier/engine/engine.h"

#include <chrono>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/log.h"

namespace selfsame::verifier {
namespace {

int64_t TokensIn(const StreamMessage& message) {
  if (const auto* opening = std::get_if<SessionOpening>(&message)) {
    return static_cast<int64_t>(opening->prompt_token_ids.size() +
                                opening->committed_token_ids.size() +
                                opening->stop_token_ids.size());
  }
  if (const auto* window = std::get_if<Window>(&message)) {
    return static_cast<int64_t>(window->candidate_ids.size());
  }
  return 0;
}

}  // namespace

Engine::Engine(std::unique_ptr<Worker> worker,
               std::function<void(const absl::Status&)> on_device_lost)
    : info_(worker->info()),
      on_device_lost_(std::move(on_device_lost)),
      worker_(std::move(worker)),
      thread_([this] { Main(); }) {}

Engine::~Engine() { Drain(UnavailableError("the verifier is shutting down")); }

absl::StatusOr<uint64_t> Engine::OpenStream(std::shared_ptr<StreamSink> sink) {
  MutexLock lock(mutex_);
  if (is_draining_) return UnavailableError("the verifier is shutting down");
  if (streams_.size() >= kMaxVerifyStreams) {
    return ResourceExhaustedError(
        absl::StrCat("the verifier has its limit of ", kMaxVerifyStreams, " streams"),
        kSessionRetryMs);
  }
  const uint64_t id = next_stream_id_++;
  streams_.emplace(id, Stream{.sink = sink});
  inbox_.push_back({.stream_id = id, .what = Opened{}, .sink = std::move(sink)});
  return id;
}

bool Engine::Post(uint64_t stream_id, StreamMessage message) {
  MutexLock lock(mutex_);
  const auto it = streams_.find(stream_id);
  if (it == streams_.end()) return true;
  Stream& stream = it->second;
  ++stream.message_count;
  stream.token_count += TokensIn(message);
  inbox_.push_back({.stream_id = stream_id, .what = std::move(message), .sink = nullptr});
  inbox_changed_.NotifyOne();
  stream.wants_room =
      stream.message_count >= kMaxInboxMessages || stream.token_count >= kMaxInboxTokens;
  return !stream.wants_room;
}

void Engine::CloseStream(uint64_t stream_id) {
  MutexLock lock(mutex_);
  if (streams_.erase(stream_id) == 0) return;
  inbox_.push_back({.stream_id = stream_id, .what = Closed{}, .sink = nullptr});
  inbox_changed_.NotifyOne();
}

void Engine::Drain(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!is_draining_) drain_status_ = status;
    is_draining_ = true;
    inbox_changed_.NotifyOne();
  }
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Engine::Main() {
  std::optional<SteadyTime> wake_at;
  std::vector<InboxEntry> entries;
  while (TakeInbox(wake_at, entries)) {
    for (InboxEntry& entry : entries) Dispatch(std::move(entry));
    entries.clear();
    auto next = worker_->RunPass(std::chrono::steady_clock::now());
    if (!next.ok()) {
      LogError("the device is lost: ", next.status().ToString());
      Finish(UnavailableError(
          absl::StrCat("the verifier's device is lost: ", next.status().message())));
      on_device_lost_(next.status());
      return;
    }
    wake_at = *next;
  }
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = drain_status_;
  }
  for (InboxEntry& entry : entries) Dispatch(std::move(entry));
  Finish(status);
}

bool Engine::TakeInbox(std::optional<SteadyTime> wake_at, std::vector<InboxEntry>& entries) {
  std::vector<std::shared_ptr<StreamSink>> with_room;
  bool goes_on = true;
  {
    MutexLock lock(mutex_);
    while (inbox_.empty() && !is_draining_) {
      if (!wake_at) {
        inbox_changed_.Wait(mutex_);
      } else if (std::chrono::steady_clock::now() < *wake_at) {
        inbox_changed_.WaitUntil(mutex_, *wake_at);
      } else {
        break;
      }
    }
    goes_on = !is_draining_;
    entries.swap(inbox_);
    for (auto& [id, stream] : streams_) {
      stream.message_count = 0;
      stream.token_count = 0;
      if (std::exchange(stream.wants_room, false)) with_room.push_back(stream.sink);
    }
  }
  for (const auto& sink : with_room) sink->OnInboxRoom();
  return goes_on;
}

void Engine::Dispatch(InboxEntry entry) {
  const uint64_t id = entry.stream_id;
  if (std::holds_alternative<Opened>(entry.what)) {
    worker_->OpenStream(id, std::move(entry.sink));
  } else if (std::holds_alternative<Closed>(entry.what)) {
    worker_->CloseStream(id);
  } else {
    const SteadyTime now = std::chrono::steady_clock::now();
    std::visit(
        [&](auto message) {
          using Message = decltype(message);
          if constexpr (std::is_same_v<Message, SessionOpening>) {
            worker_->OpenSession(id, std::move(message), now);
          } else if constexpr (std::is_same_v<Message, Window>) {
            worker_->SubmitWindow(id, std::move(message), now);
          } else {
            worker_->CloseSession(id, message.session_id);
          }
        },
        std::get<StreamMessage>(std::move(entry.what)));
  }
}

// Ends every stream, those included that were opened but not yet taken in.
void Engine::Finish(const absl::Status& status) {
  std::vector<InboxEntry> entries;
  {
    MutexLock lock(mutex_);
    is_draining_ = true;
    entries.swap(inbox_);
    streams_.clear();
  }
  for (InboxEntry& entry : entries) Dispatch(std::move(entry));
  worker_->EndAll(status);
  const WorkerStats stats = worker_->stats();
  LogInfo(stats.passes, " passes, ", stats.rows, " rows, ", stats.padded_rows, " rows of padding, ",
          stats.evictions, " evictions");
}

}  // namespace selfsame::verifier
