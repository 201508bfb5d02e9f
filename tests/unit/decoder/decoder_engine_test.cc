// The engine with its thread, and verifiers on threads of their own.

#include "decoder/engine/decoder_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/errors.h"
#include "common/limits.h"
#include "tests/unit/decoder/canonical_verifier.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

using ::testing::HasSubstr;

// Answers a verifier's messages until it is stopped.
class VerifierThread {
 public:
  explicit VerifierThread(CanonicalVerifier& verifier)
      : thread_([this, &verifier] {
          while (!is_stopping_) {
            if (!verifier.ProcessOne()) std::this_thread::yield();
          }
        }) {}
  ~VerifierThread() {
    is_stopping_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

class DecoderEngineTest : public ::testing::Test {
 protected:
  static DecoderEngineOptions Options() {
    DecoderEngineOptions options;
    options.core.scheduler = {.max_batch_tokens = kTestMaxRows, .max_batch_size = 4};
    options.core.sessions.window_size = 8;
    options.kv_block_count = 100;
    options.max_waiting_requests = 64;
    return options;
  }

  void Create(const DecoderEngineOptions& options = Options()) {
    auto engine = TryCreate(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  absl::StatusOr<std::unique_ptr<DecoderEngine>> TryCreate(const DecoderEngineOptions& options) {
    return DecoderEngine::Create(options, TinyWorld::Get().LoadFast(ops_),
                                 TinyWorld::Get().tokenizer(),
                                 std::make_unique<AdaptiveWindowPolicy>(
                                     WindowOptions{.window_size = 8, .first_window_size = 4}),
                                 clock_);
  }

  // Starts the engine with `count` connected verifiers.
  void Start(int count) {
    std::vector<VerifierLink*> links;
    for (int i = 0; i < count; ++i) {
      verifiers_.push_back(std::make_unique<CanonicalVerifier>(i, "F"));
      verifiers_.back()->Attach(engine_.get());
      links.push_back(verifiers_.back().get());
    }
    StartWith(links);
    for (auto& verifier : verifiers_) {
      verifier->Connect();
      threads_.push_back(std::make_unique<VerifierThread>(*verifier));
    }
  }

  void StartWith(const std::vector<VerifierLink*>& links) {
    engine_->Start(links, [this](const absl::Status& status) { lost_.set_value(status); });
  }

  std::shared_ptr<RecordingSink> Submit(GenerationRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    auto id = engine_->Submit(std::move(request), sink);
    EXPECT_TRUE(id.ok()) << id.status();
    last_id_ = id.value_or(0);
    return sink;
  }

  absl::Status TrySubmit(GenerationRequest request) {
    return engine_->Submit(std::move(request), std::make_shared<RecordingSink>()).status();
  }

  static GenerationRequest Ordinary(int index, int32_t max_tokens) {
    GenerationRequest request = TestRequest(index, max_tokens);
    request.is_deterministic = false;
    return request;
  }

  SteadyClock clock_;
  std::vector<std::unique_ptr<CanonicalVerifier>> verifiers_;
  std::unique_ptr<DecoderEngine> engine_;
  std::vector<std::unique_ptr<VerifierThread>> threads_;
  uint64_t last_id_ = 0;
  selfsame::testing::ControlledOps* ops_ = nullptr;  // the model's
  std::promise<absl::Status> lost_;
};

TEST_F(DecoderEngineTest, DeterministicAnswersAreCanonicalBesideOrdinaryOnes) {
  Create();
  Start(2);
  std::vector<std::shared_ptr<RecordingSink>> sinks(16);
  for (int i = 0; i < 16; ++i) {
    sinks[static_cast<size_t>(i)] = Submit(i % 4 == 3 ? Ordinary(i, 60) : TestRequest(i, 60));
  }
  for (int i = 0; i < 16; ++i) {
    SCOPED_TRACE(i);
    RecordingSink& sink = *sinks[static_cast<size_t>(i)];
    sink.WaitUntilDone();
    ASSERT_TRUE(sink.complete.has_value()) << sink.status;
    if (i % 4 == 3) continue;
    const auto expected = TinyWorld::Get().Answer(TestRequest(i, 60));
    EXPECT_EQ(sink.token_ids, expected.token_ids);
    EXPECT_EQ(sink.logprobs, expected.logprobs);
    EXPECT_EQ(sink.text, expected.text);
  }
}

TEST_F(DecoderEngineTest, OrdinaryRequestsNeedNoVerifier) {
  Create();
  Start(0);
  auto sink = Submit(Ordinary(2, 30));
  sink->WaitUntilDone();
  ASSERT_TRUE(sink->complete.has_value()) << sink->status;
  EXPECT_EQ(sink->complete->prompt_tokens, 27);
}

TEST_F(DecoderEngineTest, WithoutAVerifierConfiguredADeterministicRequestIsRefused) {
  Create();
  Start(0);
  EXPECT_TRUE(absl::IsFailedPrecondition(TrySubmit(TestRequest(1, 10))));
}

TEST_F(DecoderEngineTest, CancelEndsARequestMidWay) {
  Create();
  Start(1);
  auto sink = Submit(TestRequest(1, 180));
  const uint64_t id = last_id_;
  sink->WaitForTokens(3);
  engine_->Cancel(id);
  sink->WaitUntilDone();
  EXPECT_TRUE(sink->complete.has_value() || absl::IsCancelled(sink->status));
}

TEST_F(DecoderEngineTest, AFullQueueIsRefusedWithAHintToTryLater) {
  DecoderEngineOptions options = Options();
  options.max_waiting_requests = 2;
  Create(options);
  // Deterministic requests wait in the queue while no verifier is up.
  CanonicalVerifier down(0, "F");
  down.Attach(engine_.get());
  StartWith({&down});
  auto first = Submit(TestRequest(1, 10));
  auto second = Submit(TestRequest(2, 10));
  const absl::Status full = TrySubmit(TestRequest(3, 10));
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_TRUE(RetryAfterMsOf(full).has_value());
  EXPECT_EQ(engine_->stats().waiting_requests, 2);
  engine_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(first->status));
  EXPECT_TRUE(absl::IsUnavailable(second->status));
}

TEST_F(DecoderEngineTest, TheRetryHintIsMeasured) {
  DecoderEngineOptions options = Options();
  options.max_waiting_requests = 2;
  Create(options);
  Start(1);
  for (int i = 0; i < 20; ++i) Submit(Ordinary(1, 5))->WaitUntilDone();
  // Ones that stay, until the queue is full.
  absl::Status full;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 100 && full.ok(); ++i) {
    auto sink = std::make_shared<RecordingSink>();
    full = engine_->Submit(Ordinary(1, 180), sink).status();
    if (full.ok()) sinks.push_back(sink);
  }
  ASSERT_TRUE(absl::IsResourceExhausted(full)) << full;
  // Twenty left in less than a few seconds, and two are half of the queue.
  ASSERT_TRUE(RetryAfterMsOf(full).has_value());
  EXPECT_GE(*RetryAfterMsOf(full), 50);
  EXPECT_LT(*RetryAfterMsOf(full), 1000);
  for (const auto& sink : sinks) sink->WaitUntilDone();
}

TEST_F(DecoderEngineTest, DrainRefusesNewRequestsAndLetsTheOthersFinish) {
  Create();
  Start(1);
  std::vector<std::shared_ptr<RecordingSink>> sinks(6);
  for (int i = 0; i < 6; ++i) sinks[static_cast<size_t>(i)] = Submit(TestRequest(i, 40));
  engine_->Drain(clock_.Now() + std::chrono::minutes(2));
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->is_done());
    EXPECT_TRUE(sink->complete.has_value()) << sink->status;
  }
  EXPECT_TRUE(absl::IsUnavailable(TrySubmit(Ordinary(1, 10))));
}

TEST_F(DecoderEngineTest, WhatADrainDoesNotFinishIsUnavailable) {
  Create();
  CanonicalVerifier silent(0, "F");
  silent.Attach(engine_.get());
  StartWith({&silent});
  silent.Connect();
  auto sink = Submit(TestRequest(1, 40));
  engine_->Drain(clock_.Now());
  EXPECT_FALSE(sink->is_done());
  engine_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(sink->status));
  EXPECT_EQ(engine_->stats().running_requests, 0);
}

TEST_F(DecoderEngineTest, ALostDeviceEndsEverythingAndIsReported) {
  Create();
  // Requests come while the pass runs that fails.
  std::promise<void> has_begun;
  std::promise<void> may_end;
  int passes = 0;
  ops_->at_end_of_pass = [&] {
    if (++passes < 20) return absl::OkStatus();
    has_begun.set_value();
    may_end.get_future().wait();
    return InternalError("sticky");
  };
  Start(1);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 8; ++i) sinks.push_back(Submit(TestRequest(i, 180)));
  for (int i = 0; i < 8; ++i) sinks.push_back(Submit(Ordinary(i, 180)));
  has_begun.get_future().wait();
  sinks.push_back(Submit(TestRequest(20, 40)));
  sinks.push_back(Submit(Ordinary(21, 40)));
  may_end.set_value();

  const absl::Status lost = lost_.get_future().get();
  EXPECT_TRUE(absl::IsUnavailable(lost));
  EXPECT_EQ(lost.message(), "the decoder's device is lost: sticky");
  int lost_count = 0;
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->is_done());
    if (sink->complete.has_value()) continue;  // before
    EXPECT_EQ(sink->status, lost);
    ++lost_count;
  }
  EXPECT_GE(lost_count, 2);
  EXPECT_EQ(passes, 20);
  EXPECT_EQ(TrySubmit(Ordinary(1, 10)), lost);
  EXPECT_EQ(engine_->stats().running_requests + engine_->stats().waiting_requests, 0);
  engine_->Drain(clock_.Now() + std::chrono::hours(1));  // at once
}

TEST_F(DecoderEngineTest, ALossEndsADrain) {
  Create();
  // The device is lost once requests are refused, and until then there is one.
  ops_->at_end_of_pass = [this] {
    const bool is_draining = absl::IsUnavailable(TrySubmit(Ordinary(2, 180)));
    return is_draining ? InternalError("sticky") : absl::OkStatus();
  };
  Start(0);
  Submit(Ordinary(1, 180));
  engine_->Drain(clock_.Now() + std::chrono::hours(1));
  EXPECT_EQ(lost_.get_future().get().message(), "the decoder's device is lost: sticky");
}

TEST_F(DecoderEngineTest, AVerifierThatFloodsTheInboxIsReset) {
  Create();
  CanonicalVerifier verifier(0, "F");
  verifier.Attach(engine_.get());
  verifier.Connect();
  Verdict verdict;
  verdict.session_id = 1 << 20;
  for (int i = 0; i < kMaxQueuedVerifierEvents + 10; ++i) engine_->OnVerdict(0, verdict);
  StartWith({&verifier});
  {
    VerifierThread thread(verifier);
    auto sink = Submit(TestRequest(2, 20));
    sink->WaitUntilDone();
    ASSERT_TRUE(sink->complete.has_value()) << sink->status;
    EXPECT_EQ(sink->token_ids, TinyWorld::Get().Answer(TestRequest(2, 20)).token_ids);
    engine_->Stop();
  }
  EXPECT_EQ(verifier.reset_count, 1);
}

TEST_F(DecoderEngineTest, OptionsThatDoNotFitAreNamed) {
  const auto refusal = [this](auto change) {
    DecoderEngineOptions options = Options();
    change(options);
    auto engine = TryCreate(options);
    EXPECT_TRUE(absl::IsInvalidArgument(engine.status()));
    return FieldOf(engine.status()).value_or("");
  };
  EXPECT_EQ(refusal([](auto& o) { o.core.scheduler.max_batch_size = 0; }), "max_batch_size");
  EXPECT_EQ(refusal([](auto& o) { o.core.scheduler.max_batch_size = kTestMaxLogitRows + 1; }),
            "max_batch_size");
  EXPECT_EQ(refusal([](auto& o) { o.core.scheduler.max_batch_tokens = 3; }), "max_batch_tokens");
  EXPECT_EQ(refusal([](auto& o) { o.core.scheduler.max_batch_tokens = kTestMaxRows + 1; }),
            "max_batch_tokens");
  EXPECT_EQ(refusal([](auto& o) { o.kv_block_count = 15; }), "kv_block_count");
  EXPECT_EQ(refusal([](auto& o) { o.core.sessions.window_size = kMaxWindowSize + 1; }),
            "window_size");
  EXPECT_EQ(refusal([](auto& o) { o.core.max_inflight_windows = 0; }), "max_inflight_windows");
  EXPECT_EQ(refusal([](auto& o) { o.max_waiting_requests = 0; }), "max_waiting_requests");
}

}  // namespace
}  // namespace selfsame::decoder
