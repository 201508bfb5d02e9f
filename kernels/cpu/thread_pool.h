#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace selfsame::cpu {

// Fork-join over numbered items. Each thread is given a run of neighbouring items, takes them in
// increasing order (weights stream best that way), and then takes items from the far end of other
// threads' runs. The caller works too, so a worker the system has not scheduled never delays a
// call; only one that was descheduled in the middle of an item does. Between calls workers spin for
// some microseconds, yield their CPU for a while and then sleep, so that a second process on the
// same CPUs gets them.
//
// Items run with denormals flushed (flush_denormals.h). Nothing an item computes may depend on
// which thread runs it. One thread at a time calls Run; items must not call it.
class ThreadPool {
 public:
  // `task(index, thread)`: thread is in [0, thread_count()), 0 being the caller.
  using Task = absl::FunctionRef<void(int index, int thread)>;

  // `thread_count` includes the caller and is at least 1.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs task for every index in [0, count); returns when all are done.
  void Run(int count, Task task);

  // Rouses sleeping workers so that a Run soon after finds them awake.
  void Wake();

 private:
  // Items of a thread's run nobody has claimed: first in the upper half, end in the lower. A claim
  // is a compare-exchange of both and holds for the call that is then in progress.
  struct alignas(64) ItemRun {
    std::atomic<uint64_t> items{0};
  };

  void Work(int thread);
  // Claims and runs items until none is left; returns how many.
  int RunItems(int thread);
  // Returns when another call has begun since `call`, or when the pool is stopping.
  void AwaitCall(uint32_t call);

  std::vector<ItemRun> runs_;  // [thread_count]
  alignas(64) std::atomic<uint32_t> call_{0};
  // Items of the current call that are not finished.
  alignas(64) std::atomic<int> pending_{0};
  alignas(64) std::atomic<uint32_t> wake_count_{0};
  std::atomic<int> sleeper_count_{0};
  std::atomic<bool> stopping_{false};
  // Written by Run before it hands out items, read only by holders of a claim.
  const Task* task_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace selfsame::cpu
