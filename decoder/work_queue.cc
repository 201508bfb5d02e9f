#include "decoder/work_queue.h"

#include <utility>

namespace selfsame::decoder {

WorkQueue::WorkQueue(int max_waiting)
    : max_waiting_(static_cast<size_t>(max_waiting)), thread_([this] { Run(); }) {}

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool WorkQueue::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (waiting_.size() >= max_waiting_) return false;
  waiting_.push_back(std::move(task));
  changed_.NotifyAll();
  return true;
}

void WorkQueue::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (waiting_.empty() && !is_stopping_) changed_.Wait(mutex_);
      if (waiting_.empty()) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    task();
  }
}

}  // namespace selfsame::decoder
