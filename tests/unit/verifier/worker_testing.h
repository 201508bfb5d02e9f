#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/canonical/rungs.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/canonical_loop.h"
#include "tests/testing/tiny_model.h"
#include "tests/unit/verifier/proposer.h"
#include "verifier/engine/pass_builder.h"
#include "verifier/engine/worker.h"

namespace selfsame::verifier {

inline constexpr uint64_t kStream = 1;
inline constexpr int32_t kContextLimit = 256;
inline constexpr int32_t kVocabSize = 512;

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
             int32_t max_window_size = 64, bool enable_prefix_caching = true) {
    VerifierInfo info{.fingerprint = "fp",
                      .arithmetic = "test",
                      .context_limit = kContextLimit,
                      .vocab_size = kVocabSize,
                      .max_window_size = std::min(max_window_size, max_rows),
                      .max_sessions = 32,
                      .rungs = DefaultRungs(max_rows)};
    worker_ = std::make_unique<Worker>(*model_, *model_->CreateKvCache(block_count),
                                       std::move(info), std::chrono::nanoseconds(0),
                                       std::move(policy), enable_prefix_caching);
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
    opening.top_logprobs = static_cast<int32_t>(id % 3) * 2;
    return opening;
  }

  static testing::Answer Reference(const SessionOpening& opening) {
    testing::LoopParams params;
    params.sampling = {.temperature = opening.temperature,
                       .top_k = opening.top_k,
                       .top_p = opening.top_p,
                       .min_p = opening.min_p,
                       .seed = opening.seed,
                       .choice_index = opening.choice_index,
                       .top_count = opening.top_logprobs};
    params.logit_rules = opening.logit_rules;
    params.prompt_logprobs = opening.prompt_logprobs;
    params.max_tokens = opening.max_tokens;
    params.stop_token_ids = opening.stop_token_ids;
    return testing::RunCanonicalLoop(*model_, opening.prompt_token_ids, params);
  }

  void Add(SessionOpening opening, const testing::Answer& answer, ProposerOptions options) {
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

  static void ExpectSame(const testing::Answer& actual, const testing::Answer& expected) {
    EXPECT_EQ(actual.token_ids, expected.token_ids);
    ASSERT_EQ(actual.logprobs.size(), expected.logprobs.size());
    EXPECT_EQ(std::memcmp(actual.logprobs.data(), expected.logprobs.data(),
                          expected.logprobs.size() * sizeof(float)),
              0);
    EXPECT_EQ(actual.top_logprobs, expected.top_logprobs);
    EXPECT_EQ(actual.prompt_logprobs, expected.prompt_logprobs);
  }

  static inline testing::TempDir* dir_ = nullptr;
  static inline Model* model_ = nullptr;
  std::unique_ptr<Worker> worker_;
  std::shared_ptr<RecordingSink> sink_;
  std::map<uint64_t, Proposer> proposers_;
};

}  // namespace selfsame::verifier
