#include "decoder/engine/engine_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class WindowSizeTest : public CoreTest, public ::testing::WithParamInterface<int32_t> {};

TEST_P(WindowSizeTest, TheAnswerIsTheCanonicalLoops) {
  Create({.window_size = GetParam()});
  RunAndCompare(12, 70);
  EXPECT_GT(rollbacks_, 0) << "the decoder's model never differed: the test shows nothing";
  EXPECT_GE(rolled_back_tokens_, rollbacks_);
  for (const Window& window : verifiers_[0]->windows) {
    EXPECT_LE(static_cast<int32_t>(window.candidate_ids.size()), GetParam());
  }
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Sizes, WindowSizeTest, ::testing::Values(1, 7, 16, 64));

TEST_F(CoreTest, TheAnswerDoesNotDependOnWhereWindowsAreCut) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    Create({.window_size = 32,
            .seed = seed,
            .policy = std::make_unique<RandomWindowPolicy>(seed, 32)});
    RunAndCompare(8, 50);
    ExpectNothingLeft();
  }
  EXPECT_GT(rollbacks_, 0);
  EXPECT_GT(redecoded_tokens_, 0);
}

TEST_F(CoreTest, ACandidateInDoubtIsSubmittedEarly) {
  const GenerationRequest greedy = TestRequest(0, 60);
  const GenerationRequest seeded = TestRequest(1, 60);
  std::vector<int32_t> greedy_windows;
  std::vector<int32_t> seeded_windows;
  for (const float margin : {0.0f, 100.0f}) {
    Create({.window_size = 16, .doubt_margin = margin});
    const auto sinks = std::vector{Submit(greedy), Submit(seeded)};
    RunAll(sinks);
    ExpectCanonical(*sinks[0], greedy);
    ExpectCanonical(*sinks[1], seeded);
    greedy_windows.push_back(sinks[0]->complete->windows);
    seeded_windows.push_back(sinks[1]->complete->windows);
  }
  EXPECT_GT(greedy_windows[1], greedy_windows[0] * 3 / 2) << "every greedy candidate is in doubt";
  EXPECT_LT(seeded_windows[1], seeded_windows[0] * 3 / 2) << "no seeded one is";
}

TEST_F(CoreTest, WithoutRollbackTheAnswerDiffers) {
  Create({});
  verifiers_[0]->can_roll_back = false;
  int differing = 0;
  for (int i = 0; i < 8; ++i) {
    auto sink = Submit(TestRequest(i, 60));
    RunAll({sink});
    ASSERT_TRUE(sink->complete.has_value());
    EXPECT_EQ(sink->complete->rollbacks > 0, sink->complete->rolled_back_tokens > 0);
    differing += sink->token_ids != TinyWorld::Get().Answer(TestRequest(i, 60)).token_ids ? 1 : 0;
  }
  EXPECT_GT(differing, 0);
}

TEST_F(CoreTest, TheAnswerSurvivesPreemption) {
  // Room for one request of full length and little more: eight at a time need several times that.
  Create({.kv_block_count = BlocksFor(kTestContextLimit) + 2});
  RunAndCompare(10, 90);
  ExpectNothingLeft();
}

TEST_F(CoreTest, OrdinaryAndDeterministicRequestsShareABatch) {
  Create({});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 12; ++i) {
    GenerationRequest request = TestRequest(i, 40);
    request.is_deterministic = i % 3 == 0;
    sinks.push_back(Submit(request));
  }
  RunAll(sinks);
  for (int i = 0; i < 12; ++i) {
    const RecordingSink& sink = *sinks[static_cast<size_t>(i)];
    if (i % 3 == 0) {
      ExpectCanonical(sink, TestRequest(i, 40));
      continue;
    }
    ASSERT_TRUE(sink.complete.has_value()) << sink.status;
    EXPECT_EQ(sink.started->fingerprint, "");
    EXPECT_EQ(sink.complete->windows, 0);
    EXPECT_EQ(sink.logprobs.size(), sink.token_ids.size());
    for (const ChunkEvent& chunk : sink.chunks) EXPECT_EQ(chunk.token_ids.size(), 1u);
  }
}

TEST_F(CoreTest, AStopStringAcrossWindowsEndsTheAnswerAtItsToken) {
  int ended_early = 0;
  for (int32_t window_size : {1, 3, 16}) {
    for (int i = 0; i < 8; ++i) {
      GenerationRequest request = TestRequest(i, 60);
      const std::string text = TinyWorld::Get().Answer(request).text;
      const size_t middle = text.find_first_of("abcdefghijklmnopqrstuvwxyz", text.size() / 2);
      if (middle == std::string::npos || middle + 3 >= text.size()) continue;
      // Whole characters only: letters and what follows them up to the next letter.
      request.stop_strings = {text.substr(middle, 1)};
      if (text[middle + 1] > 0) request.stop_strings = {text.substr(middle, 2)};
      Create({.window_size = window_size});
      auto sink = Submit(request);
      RunAll({sink});
      ExpectCanonical(*sink, request);
      EXPECT_EQ(sink->complete->stop_string, request.stop_strings[0]);
      EXPECT_THAT(sink->text, ::testing::Not(HasSubstr(request.stop_strings[0])));
      ended_early += sink->token_ids.size() < 60 ? 1 : 0;
      ExpectNothingLeft();
    }
  }
  EXPECT_GT(ended_early, 0);
}

TEST_F(CoreTest, StopTokensEndTheAnswerWhereTheyAreCanonical) {
  int stopped = 0;
  int rollbacks_before = 0;
  for (int32_t window_size : {1, 7, 32}) {
    Create({.window_size = window_size});
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < 12; ++i) {
      GenerationRequest request = TestRequest(i, 80);
      for (int32_t id = 20; id < 512; id += 16) request.stop_token_ids.push_back(id + i);
      requests.push_back(request);
      sinks.push_back(Submit(request));
    }
    RunAll(sinks);
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectCanonical(*sinks[i], requests[i]);
      AddUp(*sinks[i]);
      if (!sinks[i]->complete->stop_token_id) continue;
      EXPECT_EQ(sinks[i]->token_ids.back(), *sinks[i]->complete->stop_token_id);
      ++stopped;
    }
    ExpectNothingLeft();
    EXPECT_GT(rollbacks_, rollbacks_before);
    rollbacks_before = rollbacks_;
  }
  EXPECT_GT(stopped, 0);
}

TEST_F(CoreTest, ACandidateThatCompletesAStopStringClosesItsWindow) {
  // A request whose candidates are all canonical, so that only the stop string can close a window.
  const int index = 3;
  GenerationRequest request = TestRequest(index, 60);
  const auto whole = TinyWorld::Get().Answer(request);
  const size_t letter = whole.text.find_first_of("abcdefghijklmnopqrstuvwxyz", 40);
  ASSERT_NE(letter, std::string::npos);
  request.stop_strings = {whole.text.substr(letter, 1)};
  Create({.window_size = 64,
          .policy = std::make_unique<AdaptiveWindowPolicy>(
              WindowOptions{.first_window_size = 64,
                            .min_idle_window_size = 64,
                            .max_age = std::chrono::hours(1)})});
  auto sink = Submit(request);
  RunAll({sink});
  ExpectCanonical(*sink, request);
  ASSERT_EQ(sink->complete->rollbacks, 0);
  ASSERT_LT(sink->token_ids.size(), whole.token_ids.size());
  ASSERT_EQ(verifiers_[0]->windows.size(), 1u);
  EXPECT_EQ(verifiers_[0]->windows[0].candidate_ids.size(), sink->token_ids.size() - 1);
}

TEST_F(CoreTest, OneChunkForEachVerdict) {
  Create({});
  auto sink = Submit(TestRequest(1, 50));
  RunAll({sink});
  EXPECT_LE(sink->chunks.size(), static_cast<size_t>(verifiers_[0]->verdict_count));
  EXPECT_EQ(sink->chunks.front().token_ids.size(), 1u) << "the opening verdict comes by itself";
}

TEST_F(CoreTest, CancelFreesBothSides) {
  Create({});
  auto sink = Submit(TestRequest(1, 100));
  auto other = Submit(TestRequest(2, 60));
  RunUntil([&] { return sink->token_ids.size() >= 5; });
  core_->Cancel(1);
  EXPECT_TRUE(absl::IsCancelled(sink->status));
  core_->Cancel(1);
  core_->Cancel(999);
  RunAll({other});
  ExpectCanonical(*other, TestRequest(2, 60));
  ExpectNothingLeft();
}

TEST_F(CoreTest, ADeadlineEndsARequest) {
  Create({});
  GenerationRequest request = TestRequest(1, 100);
  request.deadline = clock_.Now() + milliseconds(20);
  auto sink = Submit(request);
  EXPECT_EQ(core_->NextWake(), request.deadline);
  RunAll({sink});
  EXPECT_TRUE(absl::IsDeadlineExceeded(sink->status));
  ExpectNothingLeft();
}

TEST_F(CoreTest, ADeadlineEndsARequestInTheQueue) {
  Create({.max_batch_size = 1});
  GenerationRequest long_request = TestRequest(1, 100);
  long_request.is_deterministic = false;
  const auto running = Submit(long_request);
  StepCore();
  std::vector<std::shared_ptr<RecordingSink>> queued;
  for (const bool is_deterministic : {false, true}) {
    GenerationRequest request = TestRequest(2, 10);
    request.is_deterministic = is_deterministic;
    request.deadline = clock_.Now() + std::chrono::milliseconds(20);
    queued.push_back(Submit(request));
  }
  for (int i = 0; i < 21; ++i) StepCore();
  EXPECT_FALSE(running->is_done());
  for (const auto& sink : queued) {
    ASSERT_TRUE(sink->is_done());
    EXPECT_TRUE(absl::IsDeadlineExceeded(sink->status)) << sink->status;
    EXPECT_FALSE(sink->started.has_value());
  }
  EXPECT_EQ(core_->stats().waiting_requests, 0);
  EXPECT_EQ(core_->stats().dequeued, 3);
  RunAll({running});
  ExpectNothingLeft();
}

// The bound: its priority's worth of waiting, and then what came before that.
TEST_F(CoreTest, AStreamOfSoonerRequestsDoesNotStarveALaterOne) {
  Create({.max_batch_size = 1});
  GenerationRequest request = TestRequest(0, 3);
  request.is_deterministic = false;
  request.priority = 2;
  const auto late = Submit(request);
  request.priority = 0;
  const SteadyTime begin = clock_.Now();
  while (!late->is_done()) {
    while (core_->stats().running_requests + core_->stats().waiting_requests < 4) Submit(request);
    StepCore();
    clock_.Advance(std::chrono::milliseconds(9));
    ASSERT_LT(clock_.Now() - begin, 2 * kPriorityStep + std::chrono::milliseconds(300));
  }
  EXPECT_GE(clock_.Now() - begin, 2 * kPriorityStep);
  EXPECT_TRUE(late->complete.has_value());
}

TEST_F(CoreTest, AnUrgentRequestTakesTheRoomOfOthersAndTheirAnswersStand) {
  Create({.kv_block_count = 16, .max_batch_size = 4});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(TestRequest(5, 100));       // prompts of 66 tokens: three fill the memory
    requests.back().prompt_token_ids[0] = 10 + i;  // nothing is shared
    requests.back().priority = i < 4 ? 10 : -10;
    sinks.push_back(Submit(requests.back()));
    if (i == 3) RunUntil([&] { return sinks[0]->token_ids.size() >= 4; });
  }
  const int64_t before = core_->stats().preemptions;
  StepCore();
  EXPECT_TRUE(sinks[4]->started.has_value());
  EXPECT_GT(core_->stats().preemptions, before);
  RunAll(sinks);
  for (size_t i = 0; i < sinks.size(); ++i) ExpectCanonical(*sinks[i], requests[i]);
}

TEST_F(CoreTest, NoModelRowsAreTakenWhileTheVerifierIsSilentAndOrdinaryRequestsGoOn) {
  Create({.window_size = 4});
  auto deterministic = Submit(TestRequest(1, 100));
  for (int i = 0; i < 100; ++i) StepCore();
  auto has_run = core_->Step();
  ASSERT_TRUE(has_run.ok());
  EXPECT_FALSE(*has_run) << "out of credit, and still decoding";
  GenerationRequest ordinary = TestRequest(2, 60);
  ordinary.is_deterministic = false;
  auto sink = Submit(ordinary);
  for (int i = 0; i < 100 && !sink->is_done(); ++i) StepCore();
  EXPECT_TRUE(sink->complete.has_value());
  EXPECT_FALSE(deterministic->is_done());
}

TEST_F(CoreTest, OrdinaryRequestsTakeTheMemoryOfThoseThatHaveLostTheirVerifier) {
  Create({.kv_block_count = BlocksFor(kTestContextLimit)});
  std::vector<std::shared_ptr<RecordingSink>> stalled(3);
  for (auto& sink : stalled) sink = Submit(TestRequest(5, 100));  // prompts of 66 tokens
  RunUntil([&] { return stalled[2]->token_ids.size() >= 2; });
  verifiers_[0]->Disconnect();
  for (int i = 0; i < 100; ++i) StepCore();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    GenerationRequest ordinary = TestRequest(5, 100);
    ordinary.is_deterministic = false;
    sinks.push_back(Submit(ordinary));
  }
  for (int i = 0; i < 500 && !sinks[2]->is_done(); ++i) StepCore();
  for (auto& sink : sinks) EXPECT_TRUE(sink->complete.has_value());
  verifiers_[0]->Connect();
  RunAll(stalled);
  for (auto& sink : stalled) ExpectCanonical(*sink, TestRequest(5, 100));
}

}  // namespace
}  // namespace selfsame::decoder
