#include "kernels/cpu/thread_pool.h"

#include <sched.h>

#include <chrono>

#include "common/check.h"

namespace selfsame::cpu {
namespace {

// A pass has some hundred calls a few microseconds apart; waiting by spinning covers those gaps.
// Yielding after that costs little when the CPU is free and gives it away when it is not.
constexpr int kSpinCount = 64;
constexpr int kYieldCount = 200;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint32_t Remaining(uint64_t state) { return static_cast<uint32_t>(state); }

}  // namespace

ThreadPool::ThreadPool(int thread_count) {
  SELFSAME_CHECK(thread_count >= 1);
  workers_.reserve(thread_count - 1);
  for (int thread = 1; thread < thread_count; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  wake_count_.fetch_add(1);
  wake_count_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int count, Task task) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (int index = 0; index < count; ++index) task(index, 0);
    return;
  }
  task_ = &task;
  count_ = count;
  pending_.store(count, std::memory_order_relaxed);
  const uint64_t call = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  // Sequentially consistent with sleeper_count_: either this thread sees the sleeper or the sleeper
  // sees the work.
  state_.store(call << 32 | static_cast<uint32_t>(count));
  if (sleeper_count_.load() > 0) Wake();

  const int done = RunItems(0);
  if (pending_.fetch_sub(done, std::memory_order_acq_rel) == done) return;
  for (int spin = 0;; ++spin) {
    if (pending_.load(std::memory_order_acquire) == 0) return;
    if (spin < kSpinCount) {
      Pause();
    } else {
      sched_yield();
    }
  }
}

void ThreadPool::Wake() {
  if (sleeper_count_.load() == 0) return;
  wake_count_.fetch_add(1);
  wake_count_.notify_all();
}

int ThreadPool::RunItems(int thread) {
  int done = 0;
  uint64_t state = state_.load(std::memory_order_acquire);
  while (Remaining(state) > 0) {
    if (state_.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      (*task_)(count_ - static_cast<int>(Remaining(state)), thread);
      ++done;
      state = state_.load(std::memory_order_acquire);
    }
  }
  return done;
}

void ThreadPool::Work(int thread) {
  while (!stopping_.load(std::memory_order_relaxed)) {
    const int done = RunItems(thread);
    if (done > 0) {
      pending_.fetch_sub(done, std::memory_order_acq_rel);
    }
    AwaitWork();
  }
}

void ThreadPool::AwaitWork() {
  for (int spin = 0; spin < kSpinCount + kYieldCount; ++spin) {
    if (Remaining(state_.load(std::memory_order_relaxed)) > 0) return;
    if (spin < kSpinCount) {
      Pause();
    } else {
      sched_yield();
    }
  }
  sleeper_count_.fetch_add(1);
  const uint32_t wake_count = wake_count_.load();
  if (Remaining(state_.load()) == 0 && !stopping_.load()) wake_count_.wait(wake_count);
  sleeper_count_.fetch_sub(1);
}

}  // namespace selfsame::cpu
