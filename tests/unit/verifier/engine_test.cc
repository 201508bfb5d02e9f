#include "verifier/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/canonical/rungs.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/mutex.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/canonical_loop.h"
#include "tests/testing/controlled_ops.h"
#include "tests/testing/tiny_model.h"
#include "tests/unit/verifier/proposer.h"

namespace selfsame::verifier {
namespace {

constexpr int32_t kVocabSize = 512;
constexpr int32_t kContextLimit = 256;

// Hands the engine's events to the test's thread.
class QueueingSink final : public StreamSink {
 public:
  struct Event {
    std::optional<Verdict> verdict = std::nullopt;
    std::optional<std::pair<uint64_t, absl::Status>> error = std::nullopt;
    std::optional<absl::Status> end = std::nullopt;
    bool has_room = false;
  };

  void OnVerdict(Verdict verdict) override { Push({.verdict = std::move(verdict)}); }
  void OnSessionError(uint64_t session_id, const absl::Status& status) override {
    Push({.error = std::pair(session_id, status)});
  }
  void OnInboxRoom() override { Push({.has_room = true}); }
  void OnStreamEnd(const absl::Status& status) override { Push({.end = status}); }

  Event Pop() {
    MutexLock lock(mutex_);
    while (events_.empty()) changed_.Wait(mutex_);
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  void Push(Event event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.NotifyOne();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    testing::WriteTinyModel(dir_.path(), {.vocab_size = kVocabSize});
    auto cpu = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 1});
    auto ops = std::make_unique<testing::ControlledOps>(*std::move(cpu));
    ops_ = ops.get();
    model_ = *Model::Load(dir_.path(),
                          {.max_rows = 128, .max_logit_rows = 128, .context_limit = kContextLimit},
                          std::move(ops));
  }

  void Start(std::function<void(const absl::Status&)> on_device_lost = [](const absl::Status&) {}) {
    VerifierInfo info{.fingerprint = "fp",
                      .arithmetic = "test",
                      .context_limit = kContextLimit,
                      .vocab_size = kVocabSize,
                      .max_window_size = 16,
                      .max_sessions = 32,
                      .rungs = DefaultRungs(128)};
    engine_ = std::make_unique<Engine>(
        std::make_unique<Worker>(*model_, *model_->CreateKvCache(64), std::move(info),
                                 std::chrono::microseconds(100), DecideWindow),
        std::move(on_device_lost));
  }

  static SessionOpening Opening(uint64_t id) {
    SessionOpening opening;
    opening.session_id = id;
    for (int32_t i = 0; i < 30; ++i) {
      opening.prompt_token_ids.push_back(static_cast<int32_t>(id * 37) % kVocabSize + i);
    }
    opening.max_tokens = 60;
    return opening;
  }

  testing::TempDir dir_;
  testing::ControlledOps* ops_ = nullptr;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, StreamsOnThreadsOfTheirOwnGetTheirAnswers) {
  constexpr int kStreams = 3;
  constexpr uint64_t kSessions = 3;
  std::vector<testing::Answer> answers;
  for (uint64_t id = 0; id < kSessions; ++id) {
    testing::LoopParams params;
    params.max_tokens = 60;
    answers.push_back(testing::RunCanonicalLoop(*model_, Opening(id).prompt_token_ids, params));
  }
  Start();
  const auto drive = [&](uint64_t seed) {
    auto sink = std::make_shared<QueueingSink>();
    const uint64_t stream = *engine_->OpenStream(sink);
    std::map<uint64_t, Proposer> proposers;
    for (uint64_t id = 0; id < kSessions; ++id) {
      proposers.emplace(id, Proposer(Opening(id), answers[id], kVocabSize,
                                     {.window_size = 16, .has_random_cuts = true, .seed = seed}));
      EXPECT_TRUE(engine_->Post(stream, Opening(id)));
    }
    size_t done = 0;
    while (done < kSessions) {
      const QueueingSink::Event event = sink->Pop();
      ASSERT_TRUE(event.verdict.has_value());
      Proposer& proposer = proposers.at(event.verdict->session_id);
      const bool was_done = proposer.is_done();
      for (Window& window : proposer.OnVerdict(*event.verdict)) {
        EXPECT_TRUE(engine_->Post(stream, std::move(window)));
      }
      if (proposer.is_done() && !was_done) ++done;
    }
    for (auto& [id, proposer] : proposers) {
      EXPECT_EQ(proposer.committed().token_ids, answers[id].token_ids);
      EXPECT_EQ(std::memcmp(proposer.committed().logprobs.data(), answers[id].logprobs.data(),
                            answers[id].logprobs.size() * sizeof(float)),
                0);
    }
    engine_->CloseStream(stream);
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kStreams; ++i) threads.emplace_back(drive, i + 1);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(EngineTest, DrainEndsEverySessionAndStreamWithUnavailable) {
  Start();
  auto sink = std::make_shared<QueueingSink>();
  const uint64_t stream = *engine_->OpenStream(sink);
  EXPECT_TRUE(engine_->Post(stream, Opening(1)));
  ASSERT_TRUE(sink->Pop().verdict.has_value());
  engine_->Drain(UnavailableError("going away"));
  const auto error = sink->Pop().error;
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->first, 1u);
  EXPECT_EQ(error->second.code(), absl::StatusCode::kUnavailable);
  const auto end = sink->Pop().end;
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->OpenStream(sink).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine_->Post(stream, Opening(2)));  // dropped
}

TEST_F(EngineTest, ALostDeviceEndsEverythingAndIsReported) {
  ops_->at_end_of_pass = [] { return InternalError("sticky"); };
  std::promise<absl::Status> lost;
  Start([&](const absl::Status& status) { lost.set_value(status); });
  auto sink = std::make_shared<QueueingSink>();
  const uint64_t stream = *engine_->OpenStream(sink);
  EXPECT_TRUE(engine_->Post(stream, Opening(1)));
  const auto error = sink->Pop().error;
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->second.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(sink->Pop().end.has_value());
  EXPECT_THAT(std::string(lost.get_future().get().message()), ::testing::HasSubstr("sticky"));
  EXPECT_EQ(engine_->OpenStream(sink).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, AStreamsInboxIsBoundedWhileAPassRuns) {
  std::promise<void> started;
  std::promise<void> may_end;
  bool is_first = true;
  ops_->at_end_of_pass = [&] {
    if (std::exchange(is_first, false)) {
      started.set_value();
      may_end.get_future().wait();
    }
    return absl::OkStatus();
  };
  Start();
  auto sink = std::make_shared<QueueingSink>();
  const uint64_t stream = *engine_->OpenStream(sink);
  EXPECT_TRUE(engine_->Post(stream, Opening(1)));
  started.get_future().wait();
  int accepted = 1;
  while (engine_->Post(stream, SessionClosing{.session_id = 77})) ++accepted;
  EXPECT_EQ(accepted, kMaxInboxMessages);
  // Another stream still has its own share.
  auto other = std::make_shared<QueueingSink>();
  EXPECT_TRUE(engine_->Post(*engine_->OpenStream(other), SessionClosing{.session_id = 1}));
  may_end.set_value();
  while (!sink->Pop().has_room) {
  }
  EXPECT_TRUE(engine_->Post(stream, SessionClosing{.session_id = 77}));
}

TEST_F(EngineTest, StreamsHaveALimit) {
  Start();
  for (int i = 0; i < kMaxVerifyStreams; ++i) {
    ASSERT_TRUE(engine_->OpenStream(std::make_shared<QueueingSink>()).ok());
  }
  const auto one_more = engine_->OpenStream(std::make_shared<QueueingSink>());
  EXPECT_EQ(one_more.status().code(), absl::StatusCode::kResourceExhausted);
  engine_->CloseStream(1);
  EXPECT_TRUE(engine_->OpenStream(std::make_shared<QueueingSink>()).ok());
}

}  // namespace
}  // namespace selfsame::verifier
