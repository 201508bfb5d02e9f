#include "verifier/engine/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "common/errors.h"
#include "common/limits.h"
#include "tests/unit/verifier/worker_testing.h"

namespace selfsame::verifier {
namespace {

using testing::Answer;
using ::testing::HasSubstr;

// Prompts shorter and longer than a block and a pass, answers of several windows.
constexpr int32_t kPromptLengths[] = {1, 15, 16, 33, 90};

// Some ask for the logprobs of their prompts.
SessionOpening AskForPrompt(SessionOpening opening) {
  const auto id = static_cast<int32_t>(opening.session_id);
  if (id % 4 > 0) opening.prompt_logprobs = id % 4 - 1;
  return opening;
}

TEST_F(WorkerTest, TheAnswerIsThatOfTheCanonicalLoopWhateverTheShape) {
  std::vector<Answer> answers;
  for (uint64_t id = 0; id < 5; ++id) {
    answers.push_back(Reference(AskForPrompt(Opening(id, kPromptLengths[id], 70))));
  }
  int rollbacks = 0;
  for (const int window_size : {1, 7, 16, 64}) {
    for (const int batch : {1, 4, 8}) {
      SCOPED_TRACE(absl::StrCat("window ", window_size, " batch ", batch));
      Start(window_size * batch);
      proposers_.clear();
      for (uint64_t id = 0; id < 5; ++id) {
        Add(AskForPrompt(Opening(id, kPromptLengths[id], 70)), answers[id],
            {.window_size = window_size});
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
    answers.push_back(Reference(AskForPrompt(Opening(id, kPromptLengths[id], 60))));
  }
  for (const int wrong_percent : {0, 10, 60, 100}) {
    for (const int max_inflight : {1, 5}) {
      SCOPED_TRACE(absl::StrCat("wrong ", wrong_percent, " in flight ", max_inflight));
      Start(96);
      proposers_.clear();
      for (uint64_t id = 0; id < 5; ++id) {
        Add(AskForPrompt(Opening(id, kPromptLengths[id], 60)), answers[id],
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

TEST_F(WorkerTest, NeitherDoesTheAnswerOfASessionThatEditsLogits) {
  const auto editing = [](uint64_t id) {
    SessionOpening opening = Opening(id, kPromptLengths[id], 60);
    opening.min_p = id == 1 ? 0.02f : 0.0f;
    LogitRules& rules = opening.logit_rules;
    if (id != 2) rules.repetition_penalty = 1.3f;
    if (id % 2 == 0) rules.presence_penalty = 0.4f;
    if (id != 0) rules.frequency_penalty = -0.2f + 0.2f * static_cast<float>(id);
    rules.logit_bias = {{7, 2.0f}, {40, -100.0f}};
    rules.min_tokens = 25;
    opening.stop_token_ids = {7};
    return opening;
  };
  std::vector<Answer> answers;
  int changed = 0;
  for (uint64_t id = 0; id < 5; ++id) {
    answers.push_back(Reference(editing(id)));
    EXPECT_GT(answers.back().token_ids.size(), 25u);
    SessionOpening plain = editing(id);
    plain.logit_rules = {};
    changed += Reference(plain).token_ids != answers.back().token_ids ? 1 : 0;
  }
  EXPECT_EQ(changed, 5);
  for (const int wrong_percent : {0, 15, 100}) {
    for (const int blocks : {256, kContextLimit / kKvBlockTokens}) {
      SCOPED_TRACE(absl::StrCat("wrong ", wrong_percent, " blocks ", blocks));
      Start(96, blocks);
      proposers_.clear();
      for (uint64_t id = 0; id < 5; ++id) {
        SessionOpening opening = editing(id);
        const auto committed = static_cast<int64_t>(id % 3 * 7);
        opening.committed_token_ids.assign(answers[id].token_ids.begin(),
                                           answers[id].token_ids.begin() + committed);
        Add(opening, answers[id],
            {.window_size = 24, .has_random_cuts = true, .wrong_percent = wrong_percent});
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
    answers.push_back(Reference(AskForPrompt(Opening(id, 80, 70))));
    Add(AskForPrompt(Opening(id, 80, 70)), answers.back(), {.window_size = 8, .max_inflight = 2});
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
  opening = Opening(109, 5, 10);
  opening.logit_rules.frequency_penalty = 2.5f;
  open(opening);
  expect_error(109, kInvalid, "sampling.frequency_penalty: must be between -2 and 2");
  opening = Opening(120, 5, 10);
  opening.min_p = -0.5f;
  open(opening);
  expect_error(120, kInvalid, "sampling.min_p");
  opening = Opening(121, 5, 10);
  opening.logit_rules.min_tokens = 11;
  open(opening);
  expect_error(121, kInvalid, "stop.min_tokens");
  opening = Opening(122, 5, 10);
  opening.stop_token_ids = std::vector<int32_t>(kMaxSessionStopTokenIds + 1, 3);
  open(opening);
  expect_error(122, kInvalid, "stop.stop_token_ids: has 129 ids; the limit is 128");
  opening = Opening(123, 5, 10);
  opening.stop_token_ids = {kVocabSize};
  open(opening);
  expect_error(123, kInvalid, "stop.stop_token_ids: token id 512");
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
