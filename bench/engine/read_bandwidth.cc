#include "bench/engine/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "common/errors.h"
#include "kernels/cpu/memory.h"

namespace selfsame::bench {
namespace {

constexpr size_t kTotalBytes = size_t{1} << 30;
constexpr int kPasses = 7;
constexpr int kLanes = 32;  // independent results, so that the loop waits for memory alone

uint64_t OrOf(const uint64_t* data, size_t count) {
  uint64_t lanes[kLanes] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] |= data[i + j];
  }
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace

absl::StatusOr<double> MeasureReadBandwidth(int thread_count) {
  ASSIGN_OR_RETURN(auto memory, cpu::MappedMemory::Create(kTotalBytes));
  std::memset(memory->data(), 1, kTotalBytes);
  const auto* data = reinterpret_cast<const uint64_t*>(memory->data());
  const size_t share = kTotalBytes / sizeof(uint64_t) / thread_count / kLanes * kLanes;

  std::atomic<uint64_t> sink = 0;
  std::barrier barrier(thread_count);
  double best_seconds = 1e30;
  const auto work = [&](int index) {
    for (int pass = 0; pass < kPasses; ++pass) {
      barrier.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      sink |= OrOf(data + index * share, share);
      barrier.arrive_and_wait();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (index == 0) best_seconds = std::min(best_seconds, elapsed.count());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < thread_count; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  if (sink == 0) return InternalError("the memory that was read is not what was written");
  return static_cast<double>(share) * thread_count * sizeof(uint64_t) / best_seconds;
}

}  // namespace selfsame::bench
