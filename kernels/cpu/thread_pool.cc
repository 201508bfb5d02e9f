#include "kernels/cpu/thread_pool.h"

#include "common/check.h"
#include "kernels/cpu/flush_denormals.h"

namespace selfsame::cpu {
namespace {

// A pass has some hundred calls a few microseconds apart, and threads end their shares about
// together: spinning for some ten microseconds covers both waits. Whoever waits longer sleeps,
// since the thread it waits for may need this very CPU. Yielding instead would put the waiter
// behind every other thread of a busy machine, while a sleeper is put first when it is woken.
constexpr int kSpinCount = 400;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Items {
  uint32_t first;
  uint32_t end;
};

Items Unpack(uint64_t items) {
  return {static_cast<uint32_t>(items >> 32), static_cast<uint32_t>(items)};
}

uint64_t Pack(Items items) { return uint64_t{items.first} << 32 | items.end; }

// Takes the first item (or the last) of a run. Returns -1 when there is none.
int Claim(std::atomic<uint64_t>& run, bool from_end) {
  uint64_t packed = run.load(std::memory_order_acquire);
  for (;;) {
    Items items = Unpack(packed);
    if (items.first >= items.end) return -1;
    const uint32_t index = from_end ? --items.end : items.first++;
    if (run.compare_exchange_weak(packed, Pack(items), std::memory_order_acq_rel,
                                  std::memory_order_acquire)) {
      return static_cast<int>(index);
    }
  }
}

}  // namespace

ThreadPool::ThreadPool(int thread_count) : runs_(thread_count) {
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
  const FlushDenormals flush;
  if (workers_.empty() || count == 1) {
    for (int index = 0; index < count; ++index) task(index, 0);
    return;
  }
  task_ = &task;
  pending_.store(count, std::memory_order_relaxed);
  const auto threads = static_cast<int64_t>(runs_.size());
  for (int64_t thread = 0; thread < threads; ++thread) {
    const auto first = static_cast<uint32_t>(count * thread / threads);
    const auto end = static_cast<uint32_t>(count * (thread + 1) / threads);
    runs_[thread].items.store(Pack({first, end}), std::memory_order_release);
  }
  // Sequentially consistent with sleeper_count_: either this thread sees the sleeper or the sleeper
  // sees the call.
  call_.fetch_add(1);
  if (sleeper_count_.load() > 0) Wake();

  const int done = RunItems(0);
  int pending = pending_.fetch_sub(done, std::memory_order_acq_rel) - done;
  for (int spin = 0; pending > 0 && spin < kSpinCount; ++spin) {
    Pause();
    pending = pending_.load(std::memory_order_acquire);
  }
  while (pending > 0) {
    pending_.wait(pending, std::memory_order_acquire);
    pending = pending_.load(std::memory_order_acquire);
  }
}

void ThreadPool::Wake() {
  if (sleeper_count_.load() == 0) return;
  wake_count_.fetch_add(1);
  wake_count_.notify_all();
}

int ThreadPool::RunItems(int thread) {
  int done = 0;
  const int threads = static_cast<int>(runs_.size());
  for (int offset = 0; offset < threads; ++offset) {
    std::atomic<uint64_t>& run = runs_[(thread + offset) % threads].items;
    for (int index = Claim(run, offset > 0); index >= 0; index = Claim(run, offset > 0)) {
      (*task_)(index, thread);
      ++done;
    }
  }
  return done;
}

void ThreadPool::Work(int thread) {
  const FlushDenormals flush;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint32_t call = call_.load(std::memory_order_acquire);
    const int done = RunItems(thread);
    if (done > 0 && pending_.fetch_sub(done, std::memory_order_acq_rel) == done) {
      pending_.notify_one();
    }
    AwaitCall(call);
  }
}

void ThreadPool::AwaitCall(uint32_t call) {
  for (int spin = 0; spin < kSpinCount; ++spin) {
    if (call_.load(std::memory_order_relaxed) != call) return;
    Pause();
  }
  sleeper_count_.fetch_add(1);
  const uint32_t wake_count = wake_count_.load();
  if (call_.load() == call && !stopping_.load()) wake_count_.wait(wake_count);
  sleeper_count_.fetch_sub(1);
}

}  // namespace selfsame::cpu
