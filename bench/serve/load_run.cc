#include "bench/serve/load_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "common/mutex.h"

namespace selfsame::bench {
namespace {

constexpr int kReportedFailures = 5;

std::chrono::steady_clock::duration ToDuration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

class LoadRunner {
 public:
  LoadRunner(client::InferenceApi& server, const std::vector<PlannedRequest>& plan,
             double duration_s)
      : server_(server),
        plan_(plan),
        duration_s_(duration_s),
        start_(std::chrono::steady_clock::now()) {}

  // Takes requests in order until none is left. Run by several threads.
  void Work() {
    for (size_t i = next_++; i < plan_.size(); i = next_++) {
      const PlannedRequest& planned = plan_[i];
      if (duration_s_ > 0 && planned.arrival_s > duration_s_) return;
      // In a closed loop a request arrives when its turn comes.
      client::SteadyTime arrival = std::chrono::steady_clock::now();
      if (planned.arrival_s > 0) {
        arrival = start_ + ToDuration(planned.arrival_s);
        std::this_thread::sleep_until(arrival);
      } else if (duration_s_ > 0 && arrival - start_ > ToDuration(duration_s_)) {
        return;
      }
      const absl::StatusOr<client::Answer> answer = server_.Generate(planned.request, nullptr);
      const MutexLock lock(mutex_);
      if (answer.ok()) {
        result_.samples.push_back(ToSample(*answer, planned.request.is_deterministic, arrival));
        result_.samples.back().plan_index = i;
        result_.samples.back().token_ids = answer->token_ids;
      } else if (planned.request.cancel_after_tokens && absl::IsCancelled(answer.status())) {
        ++result_.cancelled;
      } else if (++result_.errors <= kReportedFailures) {
        std::fprintf(stderr, "request %zu failed: %s\n", i, answer.status().ToString().c_str());
      }
    }
  }

  LoadResult Finish() {
    const MutexLock lock(mutex_);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    result_.seconds = elapsed.count();
    return std::move(result_);
  }

 private:
  client::InferenceApi& server_;
  const std::vector<PlannedRequest>& plan_;
  const double duration_s_;
  const client::SteadyTime start_;
  std::atomic<size_t> next_ = 0;
  Mutex mutex_;
  LoadResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

LoadResult RunLoad(client::InferenceApi& server, const std::vector<PlannedRequest>& plan,
                   int max_in_flight, double duration_s) {
  LoadRunner runner(server, plan, duration_s);
  std::vector<std::thread> threads;
  const int thread_count = std::min(max_in_flight, static_cast<int>(plan.size()));
  for (int i = 1; i < thread_count; ++i) threads.emplace_back(&LoadRunner::Work, &runner);
  runner.Work();
  for (std::thread& thread : threads) thread.join();
  return runner.Finish();
}

}  // namespace selfsame::bench
