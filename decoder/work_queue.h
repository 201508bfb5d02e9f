#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "common/mutex.h"

namespace selfsame::decoder {

// A thread that runs tasks one after the other: for work that would hold up gRPC's own threads.
class WorkQueue {
 public:
  // At most `max_waiting` tasks wait beside the one that runs.
  explicit WorkQueue(int max_waiting);
  // Runs what waits, then ends.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False, with the task dropped, when too many wait. Safe from any thread; never blocks.
  [[nodiscard]] bool Post(std::function<void()> task);

 private:
  void Run();

  const size_t max_waiting_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace selfsame::decoder
