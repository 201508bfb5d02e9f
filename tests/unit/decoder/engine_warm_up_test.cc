// Which passes an engine runs before it serves.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/model/model.h"
#include "decoder/engine/decoder_engine.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/recording_ops.h"
#include "tests/testing/tiny_model.h"
#include "tests/unit/decoder/engine_testing.h"

namespace selfsame::decoder {
namespace {

// Of an engine with at most four requests in a pass.
std::vector<testing::RecordedPass> PassesBeforeServing(std::optional<Authority> authority) {
  testing::TempDir dir;
  testing::WriteTinyModel(dir.path(), {});
  auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 2});
  EXPECT_TRUE(ops.ok()) << ops.status();
  std::vector<testing::RecordedPass> passes;
  auto model = Model::Load(
      dir.path(), {.max_rows = 48, .max_logit_rows = 48, .context_limit = kTestContextLimit},
      std::make_unique<testing::RecordingOps>(*std::move(ops), passes));
  EXPECT_TRUE(model.ok()) << model.status();
  DecoderEngineOptions options;
  options.core.scheduler = {.max_batch_tokens = 48, .max_batch_size = 4};
  options.core.sessions.window_size = 8;
  options.core.authority = std::move(authority);
  options.kv_block_count = 100;
  options.max_waiting_requests = 64;
  const FakeClock clock;
  const auto engine = DecoderEngine::Create(
      options, *std::move(model), TinyWorld::Get().tokenizer(),
      std::make_unique<AdaptiveWindowPolicy>(WindowOptions{.window_size = 8}), clock);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return passes;
}

TEST(EngineWarmUpTest, PassesOfAnAuthorityArePaddedAsItsStepsAre) {
  const auto passes = PassesBeforeServing(Authority{.fingerprint = "F", .rungs = {3, 48}});
  ASSERT_EQ(passes.size(), 4u * testing::RecordingOps::kRunsToSettle);
  EXPECT_EQ(passes.front().row_count, 3);
  EXPECT_EQ(passes.front().logit_rows, 1);
  EXPECT_EQ(passes.back().row_count, 48);
  EXPECT_EQ(passes.back().logit_rows, 4);
}

TEST(EngineWarmUpTest, OthersAreNotPadded) {
  const auto passes = PassesBeforeServing(std::nullopt);
  ASSERT_EQ(passes.size(), 2u * testing::RecordingOps::kRunsToSettle);
  EXPECT_EQ(passes.front().row_count, 1);
  EXPECT_EQ(passes.back().row_count, 4);
}

}  // namespace
}  // namespace selfsame::decoder
