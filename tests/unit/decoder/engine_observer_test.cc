#include "decoder/engine/engine_observer.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

class CountingObserver final : public EngineObserver {
 public:
  void OnStep(const StepReport& step) override {
    ++steps;
    EXPECT_GE(step.row_count, step.request_count);
    EXPECT_GT(step.request_count, 0);
  }
  void OnOrdinaryWait(int32_t request_count) override {
    waiting_rows += request_count;
    ++waiting_steps;
  }
  void OnStarted(bool, std::chrono::nanoseconds) override { ++started; }
  void OnTokens(const TokensReport& report) override {
    tokens += report.token_count;
    first_tokens += report.is_first ? 1 : 0;
    since += report.since;
  }
  void OnEnd(const EndReport& report) override {
    ++ends;
    ages += report.age;
  }
  void OnSessionOpened(bool is_reopened) override { (is_reopened ? reopened : opened) += 1; }
  void OnWindow(int32_t size) override {
    ++windows;
    candidates += size;
  }
  void OnRedecoded() override { ++redecoded; }
  void OnVerdict(const VerdictReport& report) override {
    (report.is_opening ? openings : verdicts) += 1;
    rollbacks += report.is_rollback ? 1 : 0;
    dropped += report.dropped;
    EXPECT_GE(report.latency.count(), 0);
    if (report.network_time) {
      ++network_times;
      EXPECT_EQ(*report.network_time, report.latency);
    }
    EXPECT_GE(report.mismatch_index, 0);
    EXPECT_LT(report.mismatch_index, 16);
  }

  int steps = 0, waiting_rows = 0, waiting_steps = 0, started = 0, tokens = 0, first_tokens = 0;
  int ends = 0, opened = 0, reopened = 0, windows = 0, candidates = 0, redecoded = 0;
  int openings = 0, verdicts = 0, rollbacks = 0, dropped = 0, network_times = 0;
  std::chrono::nanoseconds since{0};
  std::chrono::nanoseconds ages{0};
};

class EngineObserverTest : public CoreTest {
 protected:
  // The core ends what is left, and tells the observer.
  ~EngineObserverTest() override { core_.reset(); }

  CountingObserver observer_;
};

TEST_F(EngineObserverTest, ReportsAddUpToWhatClientsAreTold) {
  Create({.observer = &observer_});
  const auto sinks = SubmitMany(8, 50);
  RunAll(sinks);
  int tokens = 0;
  int windows = 0;
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->complete.has_value());
    AddUp(*sink);
    tokens += sink->complete->output_tokens;
    windows += sink->complete->windows;
  }
  ASSERT_GT(rollbacks_, 0);
  EXPECT_EQ(observer_.started, 8);
  EXPECT_EQ(observer_.ends, 8);
  EXPECT_EQ(observer_.first_tokens, 8);
  EXPECT_EQ(observer_.tokens, tokens);
  EXPECT_EQ(observer_.opened, 8);
  EXPECT_EQ(observer_.reopened, 0);
  EXPECT_EQ(observer_.openings, 8);
  EXPECT_EQ(observer_.windows, windows);
  EXPECT_LE(observer_.verdicts, windows);
  EXPECT_EQ(observer_.rollbacks, rollbacks_);
  EXPECT_EQ(observer_.dropped, rolled_back_tokens_);
  EXPECT_EQ(observer_.redecoded, redecoded_tokens_);
  // The times between a request's tokens, from its arrival on, add up to its age.
  EXPECT_GT(observer_.ages.count(), 0);
  EXPECT_EQ(observer_.since, observer_.ages);
}

TEST_F(EngineObserverTest, TheNetworksTimeIsWhatTheVerifierDoesNotAccountFor) {
  Create({.observer = &observer_});
  // Every second window was there for no time, the others for longer than is possible.
  verifiers_[0]->tamper = [](Verdict& verdict) {
    if (verdict.window_id == 0) return;
    verdict.verifier_time =
        verdict.window_id % 2 == 1 ? std::chrono::microseconds(0) : std::chrono::hours(1);
  };
  RunAll(SubmitMany(8, 50));
  EXPECT_GT(observer_.network_times, 0);
  EXPECT_LT(observer_.network_times, observer_.verdicts);
}

TEST_F(EngineObserverTest, ASessionAfterALossIsReopened) {
  Create({.fingerprints = {"F", "F"}, .observer = &observer_});
  const auto sink = Submit(TestRequest(0, 60));
  RunUntil([&] { return observer_.tokens > 0; });
  verifiers_[verifiers_[0]->opening_count > 0 ? 0 : 1]->Disconnect();
  RunAll({sink});
  EXPECT_EQ(observer_.opened, 1);
  EXPECT_EQ(observer_.reopened, 1);
  EXPECT_EQ(observer_.openings, 2);
}

TEST_F(EngineObserverTest, OrdinaryRequestsBesideDeterministicOnesWaitForNoVerdict) {
  Create({.observer = &observer_});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    GenerationRequest request = TestRequest(i, 60);
    request.is_deterministic = i % 2 == 0;
    sinks.push_back(Submit(std::move(request)));
  }
  RunAll(sinks);
  EXPECT_EQ(observer_.waiting_steps, 0);
  EXPECT_EQ(observer_.waiting_rows, 0);
}

// Room that a request holds while it waits for verdicts goes to an ordinary one at once.
TEST_F(EngineObserverTest, AnOrdinaryRequestWaitsForNoVerdictWhenKvIsShort) {
  Create({.kv_block_count = 8, .observer = &observer_});
  // Nobody processes what is sent to the verifier: it decodes as far as it may, and keeps its KV.
  const auto holder = Submit(TestRequest(0, 60));
  for (int i = 0; i < 100; ++i) StepCore();
  ASSERT_FALSE(holder->is_done());
  ASSERT_EQ(observer_.waiting_steps, 0);
  GenerationRequest request = TestRequest(1, 4);
  request.is_deterministic = false;
  request.prompt_token_ids.assign(100, 7);
  const auto waiting = Submit(std::move(request));
  StepCore();
  EXPECT_FALSE(waiting->is_done());
  for (int i = 0; i < 100 && !waiting->is_done(); ++i) StepCore();
  EXPECT_TRUE(waiting->complete.has_value());
  EXPECT_FALSE(holder->is_done());
  EXPECT_EQ(observer_.waiting_steps, 0);
  EXPECT_EQ(observer_.waiting_rows, 0);
  RunAll({holder, waiting});
}

// Treats ordinary requests as those that may wait for memory that waits for verdicts.
class WaitingScheduler final : public Scheduler {
 public:
  using Scheduler::Scheduler;
  void Add(ScheduledRequest* request) override {
    request->never_waits = false;
    Scheduler::Add(request);
  }
};

// Runs ordinary requests only in every other step.
class HesitantScheduler final : public Scheduler {
 public:
  using Scheduler::Scheduler;
  StepPlan Plan() override {
    StepPlan plan = Scheduler::Plan();
    if (++count_ % 2 == 0) {
      std::erase_if(plan.rows, [](const auto& rows) { return rows.request->never_waits; });
    }
    return plan;
  }

 private:
  int count_ = 0;
};

TEST_F(EngineObserverTest, AnOrdinaryRequestThatLacksAnIdleOnesMemoryIsCounted) {
  Create({.kv_block_count = 9, .observer = &observer_},
         std::make_unique<WaitingScheduler>(
             SchedulerOptions{.max_batch_tokens = kTestMaxRows, .max_batch_size = 8}));
  const auto holder = Submit(TestRequest(0, 60));
  for (int i = 0; i < 100; ++i) StepCore();
  GenerationRequest request = TestRequest(1, 40);
  request.is_deterministic = false;
  request.prompt_token_ids.assign(4, 7);
  const auto running = Submit(request);
  StepCore();
  ASSERT_EQ(observer_.waiting_rows, 0);
  request.prompt_token_ids.assign(100, 7);
  const auto waiting = Submit(request);
  StepCore();
  StepCore();
  EXPECT_EQ(observer_.waiting_rows, 2);
  EXPECT_EQ(observer_.waiting_steps, 2);
}

TEST_F(EngineObserverTest, AnOrdinaryRequestThatIsHeldBackIsCounted) {
  Create({.observer = &observer_}, std::make_unique<HesitantScheduler>(SchedulerOptions{
                                       .max_batch_tokens = kTestMaxRows, .max_batch_size = 8}));
  GenerationRequest request = TestRequest(1, 40);
  request.is_deterministic = false;
  const auto sinks = std::vector{Submit(request), Submit(request)};
  for (int i = 0; i < 20; ++i) StepCore();
  EXPECT_EQ(observer_.waiting_rows, 20);
  EXPECT_EQ(observer_.waiting_steps, 10);
}

}  // namespace
}  // namespace selfsame::decoder
