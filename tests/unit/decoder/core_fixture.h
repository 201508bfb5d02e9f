#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "decoder/engine/engine_core.h"
#include "tests/unit/decoder/canonical_verifier.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {

// One core and its verifiers in one thread: who moves next is drawn from a seed.
class CoreTest : public ::testing::Test, public VerifierEvents {
 protected:
  static constexpr std::chrono::milliseconds kFailoverTimeout{1000};

  struct Setup {
    int32_t window_size = 16;
    int32_t kv_block_count = 200;
    int32_t max_batch_size = kTestMaxLogitRows;
    uint32_t seed = 1;
    std::unique_ptr<WindowPolicy> policy = nullptr;  // null: the engine's own
    std::vector<std::string> fingerprints = {"F"};
    bool is_connected = true;
    EngineObserver* observer = nullptr;
    bool enable_prefix_caching = true;
    std::chrono::milliseconds verdict_timeout{1000000};
    float doubt_margin = 0.0f;
  };

  void Create(Setup setup, std::unique_ptr<Scheduler> scheduler = nullptr) {
    state_ = setup.seed;
    core_.reset();
    verifiers_.clear();
    model_ = TinyWorld::Get().LoadFast();
    kv_ = *model_->CreateKvCache(setup.kv_block_count);
    policy_ = std::move(setup.policy);
    if (!policy_) {
      policy_ = std::make_unique<AdaptiveWindowPolicy>(
          WindowOptions{.window_size = setup.window_size,
                        .first_window_size = setup.window_size,
                        .min_idle_window_size = std::min(4, setup.window_size)});
    }
    std::vector<VerifierLink*> links;
    for (const std::string& fingerprint : setup.fingerprints) {
      verifiers_.push_back(
          std::make_unique<CanonicalVerifier>(static_cast<int>(verifiers_.size()), fingerprint));
      verifiers_.back()->Attach(this);
      links.push_back(verifiers_.back().get());
    }
    core_ = std::make_unique<EngineCore>(
        CoreOptions{
            .scheduler = {.max_batch_tokens = kTestMaxRows, .max_batch_size = setup.max_batch_size},
            .sessions = {.window_size = setup.window_size,
                         .failover_timeout = kFailoverTimeout,
                         .verdict_timeout = setup.verdict_timeout},
            .max_inflight_windows = 3,
            .doubt_margin = setup.doubt_margin,
            .enable_prefix_caching = setup.enable_prefix_caching,
            .observer = setup.observer},
        *model_, *kv_, TinyWorld::Get().tokenizer(), *policy_, clock_, links, std::move(scheduler));
    if (!setup.is_connected) return;
    for (auto& verifier : verifiers_) verifier->Connect();
  }

  void OnVerifierUp(int verifier, VerifierInfo info) override {
    core_->OnVerifierUp(verifier, std::move(info));
  }
  void OnVerifierDown(int verifier, absl::Status status) override {
    core_->OnVerifierDown(verifier, status);
  }
  void OnVerdict(int verifier, Verdict verdict) override { core_->OnVerdict(verifier, verdict); }
  void OnSessionError(int verifier, uint64_t session_id, absl::Status status) override {
    core_->OnSessionError(verifier, session_id, status);
  }

  std::shared_ptr<RecordingSink> Submit(GenerationRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    core_->Submit(next_id_++, std::move(request), sink);
    return sink;
  }

  uint32_t Below(uint32_t bound) {
    state_ = state_ * 1664525u + 1013904223u;
    return (state_ >> 8) % bound;
  }

  void StepCore() {
    auto has_run = core_->Step();
    ASSERT_TRUE(has_run.ok()) << has_run.status();
    clock_.Advance(std::chrono::milliseconds(1));
  }

  // Runs core and verifiers in a random order until `is_done`.
  template <typename Condition>
  void RunUntil(Condition is_done) {
    for (int i = 0; !is_done(); ++i) {
      ASSERT_LT(i, 100000) << "no progress";
      if (Below(2) == 0) StepCore();
      for (auto& verifier : verifiers_) {
        if (Below(3) == 0) verifier->ProcessOne();
      }
    }
  }

  void RunAll(const std::vector<std::shared_ptr<RecordingSink>>& sinks) {
    RunUntil([&] {
      return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->is_done(); });
    });
  }

  static void ExpectCanonical(const RecordingSink& sink, const GenerationRequest& request) {
    ASSERT_TRUE(sink.complete.has_value()) << sink.status;
    const TinyWorld::Expected expected = TinyWorld::Get().Answer(request);
    EXPECT_EQ(sink.token_ids, expected.token_ids);
    EXPECT_EQ(sink.logprobs, expected.logprobs);
    EXPECT_EQ(sink.text, expected.text);
    EXPECT_EQ(sink.complete->reason, expected.reason);
    EXPECT_EQ(sink.complete->fingerprint, "F");
    EXPECT_EQ(sink.started->fingerprint, "F");
  }

  // Submits the first `count` test requests.
  std::vector<std::shared_ptr<RecordingSink>> SubmitMany(int count, int32_t max_tokens) {
    std::vector<std::shared_ptr<RecordingSink>> sinks(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      sinks[static_cast<size_t>(i)] = Submit(TestRequest(i, max_tokens));
    }
    return sinks;
  }

  // Submits, runs, and compares each request with its canonical answer.
  void RunAndCompare(int count, int32_t max_tokens) {
    const auto sinks = SubmitMany(count, max_tokens);
    RunAll(sinks);
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE(i);
      ExpectCanonical(*sinks[static_cast<size_t>(i)], TestRequest(i, max_tokens));
      AddUp(*sinks[static_cast<size_t>(i)]);
    }
  }

  void AddUp(const RecordingSink& sink) {
    if (!sink.complete) return;
    rollbacks_ += sink.complete->rollbacks;
    rolled_back_tokens_ += sink.complete->rolled_back_tokens;
    redecoded_tokens_ += sink.complete->redecoded_tokens;
  }

  void ExpectNothingLeft() {
    EXPECT_EQ(core_->stats().running_requests, 0);
    EXPECT_EQ(core_->stats().waiting_requests, 0);
    for (auto& verifier : verifiers_) {
      while (verifier->ProcessOne()) {
      }
      EXPECT_EQ(verifier->session_count(), 0u);
    }
  }

  FakeClock clock_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<WindowPolicy> policy_;
  std::vector<std::unique_ptr<CanonicalVerifier>> verifiers_;
  std::unique_ptr<EngineCore> core_;
  uint64_t next_id_ = 1;
  uint32_t state_ = 1;
  int rollbacks_ = 0;
  int rolled_back_tokens_ = 0;
  int redecoded_tokens_ = 0;
};

}  // namespace selfsame::decoder
