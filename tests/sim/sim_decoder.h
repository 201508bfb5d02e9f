#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "decoder/engine/engine_core.h"
#include "tests/sim/random.h"
#include "tests/sim/sim_model.h"
#include "tests/sim/world.h"

namespace selfsame::sim {

struct DecoderSetup {
  decoder::CoreOptions core;
  decoder::WindowOptions windows;
  // Windows are cut at random, not by the product's policy.
  bool cuts_at_random = false;
  int32_t context_limit = 0;
  int32_t kv_block_count = 0;
  int32_t max_waiting_requests = 0;
  Micros max_step_time{0};
};

// The real EngineCore in the place of its thread's loop, on simulated time: takes the inbox between
// two steps, is busy for as long as a step takes, and sleeps when nothing is to be done.
class SimDecoder {
 public:
  using Event = std::function<void(decoder::EngineCore&)>;

  SimDecoder(World& world, int index, const DecoderSetup& setup, const Tokenizer& tokenizer,
             Random random);

  void Start(const std::vector<decoder::VerifierLink*>& links);
  // The process is stopped and started again: its requests end, its memory is empty.
  void Restart();

  // For the next time the inbox is taken.
  void Post(Event event);
  // Submits, or gives `sink` RESOURCE_EXHAUSTED when the queue is full.
  void Submit(uint64_t id, decoder::GenerationRequest request,
              std::shared_ptr<decoder::GenerationSink> sink);

  const ProposalLog& proposals() const { return proposals_; }
  int64_t mismatch_count() const { return mismatch_count_; }
  int64_t preemption_count() const { return preemption_count_; }
  int64_t prefix_hit_count() const { return prefix_hit_count_; }
  int64_t step_count() const { return step_count_; }
  int restart_count() const { return restart_count_; }
  // How many ordinary requests have been submitted and not ended; kept by the clients.
  int32_t ordinary_count = 0;

  // Everything has ended: fails when a request or a block is left.
  void CheckEmpty();

 private:
  void CreateCore();
  void AddCounts();
  void ScheduleStep(SteadyTime time);
  void Step();

  // No ordinary row may wait for a verdict.
  class WaitObserver final : public decoder::EngineObserver {
   public:
    WaitObserver(World& world, int index) : world_(world), index_(index) {}
    void OnOrdinaryWait(int32_t request_count) override;

   private:
    World& world_;
    const int index_;
  };

  World& world_;
  const int index_;
  DecoderSetup setup_;
  const Tokenizer& tokenizer_;
  Random random_;
  std::vector<decoder::VerifierLink*> links_;
  WaitObserver observer_;

  ProposalLog proposals_;
  std::unique_ptr<SimModel> model_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<decoder::WindowPolicy> policy_;
  std::unique_ptr<decoder::EngineCore> core_;
  std::deque<Event> inbox_;
  std::optional<SteadyTime> step_at_;
  SteadyTime busy_until_;
  int64_t mismatch_count_ = 0;  // of earlier lives
  int64_t preemption_count_ = 0;
  int64_t prefix_hit_count_ = 0;
  int64_t step_count_ = 0;
  int restart_count_ = 0;
  int idle_spins_ = 0;
};

}  // namespace selfsame::sim
