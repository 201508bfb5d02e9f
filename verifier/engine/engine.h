#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "verifier/engine/types.h"
#include "verifier/engine/worker.h"

namespace selfsame::verifier {

struct SessionClosing {
  uint64_t session_id = 0;
};

using StreamMessage = std::variant<SessionOpening, Window, SessionClosing>;

// The verifier's engine: one thread that owns model, KV and sessions, behind a bounded inbox. All
// calls are safe from any thread and never wait for a pass, but for Drain.
class Engine {
 public:
  // Starts the thread. `on_device_lost` is called on it, at most once, after every stream has ended
  // with UNAVAILABLE because a pass failed.
  Engine(std::unique_ptr<Worker> worker, std::function<void(const absl::Status&)> on_device_lost);
  // Drains.
  ~Engine();

  // A new stream; its sink gets the answers to what is posted under the id returned. UNAVAILABLE
  // while draining, RESOURCE_EXHAUSTED when there are kMaxVerifyStreams.
  absl::StatusOr<uint64_t> OpenStream(std::shared_ptr<StreamSink> sink);

  // Queues a message. False: the stream's share of the inbox is full; the caller must post nothing
  // more until the sink's OnInboxRoom. Messages of closed streams are dropped.
  [[nodiscard]] bool Post(uint64_t stream_id, StreamMessage message);

  // The peer is gone: drops the stream's unread messages and frees its sessions. The sink is not
  // called after the engine has taken this in. Ids that are not open are ignored.
  void CloseStream(uint64_t stream_id);

  // Ends every session and stream with `status` after the running pass and stops the thread. Later
  // calls only wait for that.
  void Drain(const absl::Status& status);

  const VerifierInfo& info() const { return info_; }

 private:
  struct Stream {
    std::shared_ptr<StreamSink> sink;
    int64_t message_count = 0;  // in the inbox
    int64_t token_count = 0;
    bool wants_room = false;  // Post returned false
  };
  struct Opened {};
  struct Closed {};
  struct InboxEntry {
    uint64_t stream_id = 0;
    std::variant<Opened, Closed, StreamMessage> what;
    std::shared_ptr<StreamSink> sink;  // of a stream that is opened
  };

  void Main();
  // Waits for messages, the wake-up time or a drain; false: drain.
  bool TakeInbox(std::optional<SteadyTime> wake_at, std::vector<InboxEntry>& entries);
  void Dispatch(InboxEntry entry);
  void Finish(const absl::Status& status);

  const VerifierInfo info_;
  const std::function<void(const absl::Status&)> on_device_lost_;
  std::unique_ptr<Worker> worker_;  // the engine thread's

  Mutex mutex_;
  CondVar inbox_changed_;
  std::vector<InboxEntry> inbox_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Stream> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_stream_id_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status drain_status_ ABSL_GUARDED_BY(mutex_);
  bool is_draining_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace selfsame::verifier
