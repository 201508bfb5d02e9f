#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/kv/sequence_state.h"
#include "decoder/engine/scheduler.h"

namespace selfsame::decoder {

// Plays the engine's part: owns requests, advances what a plan computed, appends sampled tokens.
class SchedulerTest : public ::testing::Test {
 protected:
  using P = std::pair<uint64_t, int32_t>;  // a request's id and its rows

  void Create(SchedulerOptions options, int32_t blocks = 1000) {
    options_ = options;
    pool_ = std::make_unique<BlockPool>(blocks);
    scheduler_ = std::make_unique<Scheduler>(options);
  }

  ScheduledRequest* Add(int32_t length, int64_t rank = 0, int32_t priority = 0) {
    auto request = std::make_unique<ScheduledRequest>();
    request->rank = rank;
    request->priority = priority;
    request->id = requests_.size();
    request->length = length;
    request->state = std::make_unique<PagedSequenceState>(*pool_);
    scheduler_->Add(request.get());
    requests_.push_back(std::move(request));
    return requests_.back().get();
  }

  // Another whose tokens are all the same, and for which the prefix cache is searched.
  ScheduledRequest* AddCached(int32_t length) {
    ScheduledRequest* request = Add(length);
    request->token_at = [](int32_t) { return 7; };
    return request;
  }

  // Plans and runs one step; checks what must hold for every plan.
  StepPlan Step() {
    StepPlan plan = scheduler_->Plan();
    int32_t total = 0;
    std::set<uint64_t> seen;
    for (const StepPlan::Rows& rows : plan.rows) {
      ScheduledRequest& request = *rows.request;
      EXPECT_TRUE(request.is_ready);
      EXPECT_TRUE(seen.insert(request.id).second) << "request twice in a step";
      EXPECT_GT(rows.row_count, 0);
      const int32_t end = request.state->length() + rows.row_count;
      EXPECT_LE(end, request.length);
      EXPECT_EQ(rows.is_sampled, end == request.length);
      EXPECT_GE(request.state->block_count(), BlocksFor(end));
      total += rows.row_count;
      request.state->Advance(end);
      if (rows.is_sampled) ++request.length;
    }
    EXPECT_LE(total, options_.max_batch_tokens);
    EXPECT_LE(plan.rows.size(), static_cast<size_t>(options_.max_batch_size));
    for (const ScheduledRequest* request : plan.preempted) {
      EXPECT_EQ(request->state->length(), 0);
      EXPECT_EQ(request->state->block_count(), 0);
    }
    return plan;
  }

  static std::vector<P> RowsOf(const StepPlan& plan) {
    std::vector<P> rows;
    for (const auto& row : plan.rows) rows.emplace_back(row.request->id, row.row_count);
    return rows;
  }

  SchedulerOptions options_;
  std::unique_ptr<BlockPool> pool_;
  std::vector<std::unique_ptr<ScheduledRequest>> requests_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace selfsame::decoder
