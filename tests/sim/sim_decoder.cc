#include "tests/sim/sim_decoder.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"

namespace selfsame::sim {
namespace {

// Cuts where chance wants it; the answer may not depend on that.
class RandomWindowPolicy final : public decoder::WindowPolicy {
 public:
  RandomWindowPolicy(Random random, int32_t window_size)
      : random_(random), window_size_(window_size) {}
  int32_t Cut(const decoder::WindowQuery& query) override {
    const bool must_cut = query.is_paused || query.has_proposed_end;
    if (!must_cut && !random_.Chance(300)) return 0;
    return random_.Between(1, query.unsubmitted);
  }
  int32_t FullSize(int32_t) const override { return window_size_; }
  std::optional<std::chrono::milliseconds> max_age() const override { return std::nullopt; }

 private:
  Random random_;
  const int32_t window_size_;
};

}  // namespace

SimDecoder::SimDecoder(World& world, int index, const DecoderSetup& setup,
                       const Tokenizer& tokenizer, Random random)
    : world_(world),
      index_(index),
      setup_(setup),
      tokenizer_(tokenizer),
      random_(random),
      observer_(world, index) {
  setup_.core.observer = &observer_;
}

void SimDecoder::WaitObserver::OnOrdinaryWait(int32_t request_count) {
  world_.Fail(absl::StrCat("decoder ", index_, ": ", request_count,
                           " ordinary requests waited for a verdict"));
}

void SimDecoder::Start(const std::vector<decoder::VerifierLink*>& links) {
  links_ = links;
  CreateCore();
}

void SimDecoder::CreateCore() {
  const PassLimits limits{.max_rows = setup_.core.scheduler.max_batch_tokens,
                          .max_logit_rows = setup_.core.scheduler.max_batch_size,
                          .context_limit = setup_.context_limit};
  model_ = std::make_unique<SimModel>(world_, limits, /*weights=*/0, random_.Fork(), &proposals_);
  kv_ = SimModel::CreateCache(setup_.kv_block_count, random_.Fork());
  if (setup_.cuts_at_random) {
    policy_ = std::make_unique<RandomWindowPolicy>(random_.Fork(), setup_.windows.window_size);
  } else {
    policy_ = std::make_unique<decoder::AdaptiveWindowPolicy>(setup_.windows);
  }
  core_ = std::make_unique<decoder::EngineCore>(setup_.core, *model_, *kv_, tokenizer_, *policy_,
                                                world_, links_);
}

void SimDecoder::Restart() {
  world_.Trace("decoder restart", {index_});
  ++restart_count_;
  for (const Event& event : std::exchange(inbox_, {})) event(*core_);
  AddCounts();
  core_.reset();
  inbox_.clear();
  CreateCore();
}

void SimDecoder::Post(Event event) {
  inbox_.push_back(std::move(event));
  ScheduleStep(world_.Now());
}

void SimDecoder::Submit(uint64_t id, decoder::GenerationRequest request,
                        std::shared_ptr<decoder::GenerationSink> sink) {
  Post([this, id, request = std::move(request), sink = std::move(sink)](decoder::EngineCore& core) {
    if (core.stats().waiting_requests >= setup_.max_waiting_requests) {
      sink->OnError(ResourceExhaustedError("the queue is full", 1000));
    } else {
      core.Submit(id, request, sink);
    }
  });
}

void SimDecoder::ScheduleStep(SteadyTime time) {
  time = std::max(time, busy_until_);
  if (step_at_ && *step_at_ <= time) return;
  step_at_ = time;
  world_.At(time, [this, time] {
    if (step_at_ == time) Step();
  });
}

void SimDecoder::Step() {
  step_at_.reset();
  // Sometimes the latest events come too late for this step.
  size_t taken = inbox_.size();
  if (taken > 0 && random_.Chance(100))
    taken = static_cast<size_t>(random_.Below(static_cast<int32_t>(taken)));
  for (; taken > 0; --taken) {
    const Event event = std::move(inbox_.front());
    inbox_.pop_front();
    event(*core_);
  }
  const auto has_run = core_->Step();
  SELFSAME_CHECK(has_run.ok());
  ++step_count_;
  if (!inbox_.empty()) ScheduleStep(world_.Now() + Micros(1));
  if (*has_run) {
    idle_spins_ = 0;
    const decoder::EngineStats stats = core_->stats();
    world_.Trace("step", {index_, stats.running_requests, stats.waiting_requests});
    busy_until_ = world_.Now() +
                  Micros(1 + random_.Below(static_cast<int32_t>(setup_.max_step_time.count())));
    ScheduleStep(busy_until_);
    return;
  }
  if (ordinary_count > 0 && inbox_.empty()) {
    world_.Fail(absl::StrCat("decoder ", index_, " had nothing to run while ", ordinary_count,
                             " ordinary requests waited"));
  }
  const std::optional<SteadyTime> wake = core_->NextWake();
  if (!wake) return;
  idle_spins_ = *wake <= world_.Now() ? idle_spins_ + 1 : 0;
  if (idle_spins_ > 3) world_.Fail(absl::StrCat("decoder ", index_, " spins without work"));
  ScheduleStep(*wake);
}

void SimDecoder::CheckEmpty() {
  const decoder::EngineStats stats = core_->stats();
  if (stats.running_requests + stats.waiting_requests != 0) {
    world_.Fail(absl::StrCat("decoder ", index_, ": ", stats.running_requests, " running and ",
                             stats.waiting_requests, " waiting requests are left"));
  }
  if (stats.free_kv_blocks != setup_.kv_block_count) {
    world_.Fail(absl::StrCat("decoder ", index_, " has lost ",
                             setup_.kv_block_count - stats.free_kv_blocks, " blocks"));
  }
  AddCounts();
}

void SimDecoder::AddCounts() {
  mismatch_count_ += model_->mismatch_count();
  preemption_count_ += core_->stats().preemptions;
  prefix_hit_count_ += core_->stats().prefix_hits;
}

}  // namespace selfsame::sim
