#include "verifier/engine/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "common/canonical/rungs.h"
#include "common/errors.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/canonical_loop.h"
#include "tests/testing/tiny_model.h"
#include "tests/unit/verifier/proposer.h"

namespace selfsame::verifier {
namespace {

using testing::Answer;
using ::testing::HasSubstr;

constexpr uint64_t kStream = 1;
constexpr int32_t kContextLimit = 256;
constexpr int32_t kVocabSize = 512;

// One model for all tests: every test has a worker and a cache of its own.
class WorkerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new testing::TempDir();
    testing::WriteTinyModel(dir_->path(), {.vocab_size = kVocabSize});
    auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 2});
    ASSERT_TRUE(ops.ok()) << ops.status();
    auto model = Model::Load(
        dir_->path(), {.max_rows = 512, .max_logit_rows = 512, .context_limit = kContextLimit},
        *std::move(ops));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = model->release();
  }
  static void TearDownTestSuite() {
    delete model_;
    delete dir_;
  }

  void Start(int32_t max_rows, int32_t block_count = 256, WindowPolicy policy = DecideWindow,
             int32_t max_window_size = 64) {
    VerifierInfo info{.fingerprint = "fp",
                      .arithmetic = "test",
                      .context_limit = kContextLimit,
                      .vocab_size = kVocabSize,
                      .max_window_size = std::min(max_window_size, max_rows),
                      .max_sessions = 32,
                      .rungs = DefaultRungs(max_rows)};
    worker_ =
        std::make_unique<Worker>(*model_, *model_->CreateKvCache(block_count), std::move(info),
                                 std::chrono::nanoseconds(0), std::move(policy));
    sink_ = std::make_shared<RecordingSink>();
    worker_->OpenStream(kStream, sink_);
  }

  static SessionOpening Opening(uint64_t id, int32_t prompt_length, int32_t max_tokens) {
    SessionOpening opening;
    opening.session_id = id;
    for (int32_t i = 0; i < prompt_length; ++i) {
      opening.prompt_token_ids.push_back(
          static_cast<int32_t>((id * 131 + static_cast<uint64_t>(i) * 17) % kVocabSize));
    }
    opening.max_tokens = max_tokens;
    // Every other session samples.
    opening.temperature = id % 2 == 0 ? 0.0f : 0.8f;
    opening.top_k = id % 4 == 1 ? 50 : 0;
    opening.top_p = id % 4 == 3 ? 0.9f : 1.0f;
    opening.seed = id * 7;
    return opening;
  }

  static Answer Reference(const SessionOpening& opening) {
    testing::LoopParams params;
    params.sampling = {.temperature = opening.temperature,
                       .top_k = opening.top_k,
                       .top_p = opening.top_p,
                       .seed = opening.seed,
                       .choice_index = opening.choice_index};
    params.max_tokens = opening.max_tokens;
    params.stop_token_ids = opening.stop_token_ids;
    return testing::RunCanonicalLoop(*model_, opening.prompt_token_ids, params);
  }

  void Add(SessionOpening opening, const Answer& answer, ProposerOptions options) {
    const uint64_t id = opening.session_id;
    options.seed = id;
    proposers_.emplace(id, Proposer(std::move(opening), answer, kVocabSize, options));
  }

  // Opens the sessions one every `stagger` passes and runs until all have ended.
  void RunAll(int stagger = 0) {
    std::vector<uint64_t> to_open;
    for (const auto& [id, proposer] : proposers_) to_open.push_back(id);
    std::reverse(to_open.begin(), to_open.end());
    for (int pass = 0; pass < 20000; ++pass) {
      while (!to_open.empty() && (stagger == 0 || pass % stagger == 0)) {
        worker_->OpenSession(kStream, proposers_.at(to_open.back()).opening(), SteadyTime());
        to_open.pop_back();
        if (stagger > 0) break;
      }
      const auto next = worker_->RunPass(SteadyTime());
      ASSERT_TRUE(next.ok()) << next.status();
      for (const Verdict& verdict : sink_->Take()) {
        for (Window& window : proposers_.at(verdict.session_id).OnVerdict(verdict)) {
          worker_->SubmitWindow(kStream, std::move(window), SteadyTime());
        }
      }
      const bool all_done = std::all_of(proposers_.begin(), proposers_.end(),
                                        [](const auto& entry) { return entry.second.is_done(); });
      if (all_done && to_open.empty()) return;
    }
    FAIL() << "sessions do not end";
  }

  static void ExpectSame(const Answer& actual, const Answer& expected) {
    EXPECT_EQ(actual.token_ids, expected.token_ids);
    ASSERT_EQ(actual.logprobs.size(), expected.logprobs.size());
    EXPECT_EQ(std::memcmp(actual.logprobs.data(), expected.logprobs.data(),
                          expected.logprobs.size() * sizeof(float)),
              0);
  }

  static testing::TempDir* dir_;
  static Model* model_;
  std::unique_ptr<Worker> worker_;
  std::shared_ptr<RecordingSink> sink_;
  std::map<uint64_t, Proposer> proposers_;
};

testing::TempDir* WorkerTest::dir_ = nullptr;
Model* WorkerTest::model_ = nullptr;

// Prompts shorter and longer than a block and a pass, answers of several windows.
constexpr int32_t kPromptLengths[] = {1, 15, 16, 33, 90};

TEST_F(WorkerTest, TheAnswerIsThatOfTheCanonicalLoopWhateverTheShape) {
  std::vector<Answer> answers;
  for (uint64_t id = 0; id < 5; ++id) {
    answers.push_back(Reference(Opening(id, kPromptLengths[id], 70)));
  }
  int rollbacks = 0;
  for (const int window_size : {1, 7, 16, 64}) {
    for (const int batch : {1, 4, 8}) {
      SCOPED_TRACE(absl::StrCat("window ", window_size, " batch ", batch));
      Start(window_size * batch);
      proposers_.clear();
      for (uint64_t id = 0; id < 5; ++id) {
        Add(Opening(id, kPromptLengths[id], 70), answers[id], {.window_size = window_size});
      }
      RunAll();
      for (auto& [id, proposer] : proposers_) {
        ExpectSame(proposer.committed(), answers[id]);
        EXPECT_EQ(proposer.end(), End::kMaxTokens);
        rollbacks += proposer.rollbacks();
      }
    }
  }
  EXPECT_GT(rollbacks, 50);
}

TEST_F(WorkerTest, TheAnswerDoesNotDependOnCutsCreditMistakesOrArrival) {
  std::vector<Answer> answers;
  for (uint64_t id = 0; id < 5; ++id) {
    answers.push_back(Reference(Opening(id, kPromptLengths[id], 60)));
  }
  for (const int wrong_percent : {0, 10, 60, 100}) {
    for (const int max_inflight : {1, 5}) {
      SCOPED_TRACE(absl::StrCat("wrong ", wrong_percent, " in flight ", max_inflight));
      Start(96);
      proposers_.clear();
      for (uint64_t id = 0; id < 5; ++id) {
        Add(Opening(id, kPromptLengths[id], 60), answers[id],
            {.window_size = 24,
             .has_random_cuts = true,
             .max_inflight = max_inflight,
             .wrong_percent = wrong_percent});
      }
      RunAll(/*stagger=*/3);
      for (auto& [id, proposer] : proposers_) ExpectSame(proposer.committed(), answers[id]);
    }
  }
}

TEST_F(WorkerTest, EvictedSessionsAreComputedAgainWithTheSameAnswer) {
  std::vector<Answer> answers;
  // Room for one context: six sessions of up to 150 tokens do not fit side by side.
  Start(64, kContextLimit / kKvBlockTokens);
  for (uint64_t id = 0; id < 6; ++id) {
    answers.push_back(Reference(Opening(id, 80, 70)));
    Add(Opening(id, 80, 70), answers.back(), {.window_size = 8, .max_inflight = 2});
  }
  RunAll(/*stagger=*/2);
  for (auto& [id, proposer] : proposers_) ExpectSame(proposer.committed(), answers[id]);
  EXPECT_GT(worker_->stats().evictions, 5);
}

TEST_F(WorkerTest, AStopTokenEndsTheAnswerWhereverItFallsInAWindow) {
  for (const size_t end_index : {0u, 1u, 5u, 15u, 16u, 17u}) {
    SCOPED_TRACE(end_index);
    SessionOpening opening = Opening(2, 20, 60);
    const Answer free_answer = Reference(opening);
    opening.stop_token_ids = {free_answer.token_ids[end_index]};
    const Answer answer = Reference(opening);
    Start(64);
    proposers_.clear();
    Add(opening, answer, {.window_size = 16});
    RunAll();
    EXPECT_EQ(proposers_.at(2).end(), End::kStopToken);
    ExpectSame(proposers_.at(2).committed(), answer);
  }
}

TEST_F(WorkerTest, TheContextLimitEndsTheAnswer) {
  const SessionOpening opening = Opening(4, 200, 1000);
  const Answer answer = Reference(opening);
  EXPECT_EQ(answer.token_ids.size(), 56u);
  Start(128);
  Add(opening, answer, {.window_size = 24});
  RunAll();
  EXPECT_EQ(proposers_.at(4).end(), End::kContextLimit);
  ExpectSame(proposers_.at(4).committed(), answer);
}

TEST_F(WorkerTest, ASessionOpenedWithCommittedTokensContinuesTheSameAnswer) {
  SessionOpening opening = Opening(3, 20, 60);
  const Answer answer = Reference(opening);
  for (const int64_t committed : {1, 30, 59}) {
    opening.committed_token_ids.assign(answer.token_ids.begin(),
                                       answer.token_ids.begin() + committed);
    Start(64);
    proposers_.clear();
    Add(opening, answer, {.window_size = 16});
    RunAll();
    ExpectSame(proposers_.at(3).committed(), answer);
  }
}

TEST_F(WorkerTest, WithoutRollbackMistakesReachTheAnswer) {
  const WindowPolicy commit_all = [](const EndRules& rules, int32_t committed_length,
                                     std::span<const int32_t> candidates,
                                     std::span<const SampledToken> canonical) {
    std::vector<SampledToken> agreeing(canonical.begin(), canonical.end());
    for (size_t i = 0; i < agreeing.size(); ++i) agreeing[i].token_id = candidates[i];
    return DecideWindow(rules, committed_length, candidates, agreeing);
  };
  const SessionOpening opening = Opening(2, 20, 60);
  const Answer answer = Reference(opening);
  Start(64, 256, commit_all);
  Add(opening, answer, {.window_size = 16, .wrong_percent = 10});
  RunAll();
  EXPECT_EQ(proposers_.at(2).rollbacks(), 0);
  EXPECT_NE(proposers_.at(2).committed().token_ids, answer.token_ids);
}

TEST_F(WorkerTest, WhatIsWrongEndsItsOwnSessionOnly) {
  Start(64);
  const Answer answer = Reference(Opening(2, 20, 60));
  Add(Opening(2, 20, 60), answer, {.window_size = 16});

  const auto expect_error = [&](uint64_t id, absl::StatusCode code, const std::string& text) {
    ASSERT_TRUE(sink_->errors.contains(id)) << text;
    EXPECT_EQ(sink_->errors.at(id).code(), code);
    EXPECT_THAT(std::string(sink_->errors.at(id).message()), HasSubstr(text));
  };
  const auto open = [&](SessionOpening opening) {
    worker_->OpenSession(kStream, std::move(opening), SteadyTime());
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  open(Opening(100, 0, 10));
  expect_error(100, kInvalid, "prompt_token_ids: must not be empty");
  open(Opening(101, kContextLimit, 10));
  expect_error(101, kInvalid, "context limit of 256");
  open(Opening(102, 5, 0));
  expect_error(102, kInvalid, "max_tokens");
  SessionOpening opening = Opening(103, 5, 10);
  opening.prompt_token_ids[3] = kVocabSize;
  open(opening);
  expect_error(103, kInvalid, "token id 512 at index 3");
  opening = Opening(104, 5, 10);
  opening.temperature = std::nanf("");
  open(opening);
  expect_error(104, kInvalid, "sampling.temperature");
  opening = Opening(105, 5, 10);
  opening.expected_fingerprint = "another";
  open(opening);
  expect_error(105, absl::StatusCode::kFailedPrecondition, "expected_fingerprint");
  opening = Opening(106, 5, 10);
  opening.stop_token_ids = {9};
  opening.committed_token_ids = {8, 9};
  open(opening);
  expect_error(106, kInvalid, "stop token 9");
  opening = Opening(107, 5, 2);
  opening.committed_token_ids = {8, 9};
  open(opening);
  expect_error(107, kInvalid, "committed_token_ids");
  open(Opening(108, 5, 10));
  open(Opening(108, 5, 10));
  expect_error(108, kInvalid, "session_id: 108 is already in use");

  const auto submit = [&](uint64_t id, int32_t first_position, std::vector<int32_t> candidates) {
    worker_->SubmitWindow(kStream, {id, 0, 1, first_position, std::move(candidates)}, SteadyTime());
  };
  for (uint64_t id = 110; id < 115; ++id) open(Opening(id, 5, 10));
  ASSERT_TRUE(worker_->RunPass(SteadyTime()).ok());
  ASSERT_EQ(sink_->Take().size(), 5u);
  submit(110, 6, {});
  expect_error(110, kInvalid, "a window has 1 to 64 candidates, not 0");
  submit(111, 6, std::vector<int32_t>(65, 1));
  expect_error(111, kInvalid, "not 65");
  submit(112, 6, {-1});
  expect_error(112, kInvalid, "token id -1");
  submit(113, 9, {1});
  expect_error(113, kInvalid, "first_position");
  submit(999, 6, {1});
  expect_error(999, absl::StatusCode::kNotFound, "session 999");
  // The session is gone: so is its id.
  submit(113, 6, {1});
  expect_error(113, absl::StatusCode::kNotFound, "session 113");

  worker_->CloseSession(kStream, 114);
  RunAll();
  ExpectSame(proposers_.at(2).committed(), answer);
}

TEST_F(WorkerTest, SessionsHaveALimitAndClosingOneMakesRoom) {
  Start(64);
  for (uint64_t id = 0; id < 33; ++id) {
    worker_->OpenSession(kStream, Opening(id, 2, 5), SteadyTime());
  }
  ASSERT_TRUE(sink_->errors.contains(32));
  EXPECT_EQ(sink_->errors.at(32).code(), absl::StatusCode::kResourceExhausted);
  worker_->CloseSession(kStream, 7);
  worker_->OpenSession(kStream, Opening(33, 2, 5), SteadyTime());
  EXPECT_EQ(sink_->errors.size(), 1u);
}

TEST_F(WorkerTest, AClosedStreamTakesItsSessionsWithIt) {
  Start(64);
  auto other = std::make_shared<RecordingSink>();
  worker_->OpenStream(2, other);
  worker_->OpenSession(kStream, Opening(1, 20, 5), SteadyTime());
  worker_->OpenSession(2, Opening(1, 20, 5), SteadyTime());
  worker_->CloseStream(kStream);
  ASSERT_TRUE(worker_->RunPass(SteadyTime()).ok());
  EXPECT_TRUE(sink_->verdicts.empty());
  EXPECT_EQ(other->verdicts.size(), 1u);
  worker_->EndAll(UnavailableError("bye"));
  EXPECT_EQ(other->errors.at(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(other->end.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(sink_->errors.empty());
}

}  // namespace
}  // namespace selfsame::verifier
