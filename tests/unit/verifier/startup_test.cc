#include "verifier/engine/startup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/canonical/rungs.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/recording_ops.h"
#include "tests/testing/tiny_model.h"

namespace selfsame::verifier {
namespace {

using ::testing::HasSubstr;

class StartUpTest : public ::testing::Test {
 protected:
  StartUpTest() {
    testing::WriteTinyModel(dir_.path(), {});
    std::ofstream(dir_.path() + "/tokenizer.json") << "{}";
  }

  StartupOptions Options() {
    return {.source = {.model_dir = dir_.path(), .synthetic = std::nullopt},
            .kv_size_mb = 16,
            .context_limit = 0,
            .verify_batch_size = 4,
            .window_size = 16,
            .max_sessions = 8};
  }

  absl::StatusOr<VerifierParts> Start(const StartupOptions& options,
                                      Schedule schedule = Schedule::kCanonical) {
    auto ops = CreateCpuOps({.schedule = schedule, .thread_count = 2});
    EXPECT_TRUE(ops.ok());
    return StartUpOn(*std::move(ops), options, DecideWindow);
  }

  testing::TempDir dir_;
};

TEST_F(StartUpTest, ReportsWhatItVerifiesWith) {
  const auto parts = Start(Options());
  ASSERT_TRUE(parts.ok()) << parts.status();
  const VerifierInfo& info = parts->worker->info();
  EXPECT_EQ(info.fingerprint.size(), 64u);
  EXPECT_EQ(info.context_limit, 2048);
  EXPECT_EQ(info.vocab_size, 512);
  EXPECT_EQ(info.max_window_size, 16);
  EXPECT_EQ(info.max_sessions, 8);
  EXPECT_EQ(info.rungs, DefaultRungs(64));
  EXPECT_EQ(info.arithmetic, parts->model->ops().ArithmeticId());
}

TEST_F(StartUpTest, TheFingerprintDoesNotDependOnBatchOrWindowSize) {
  const auto parts = Start(Options());
  StartupOptions options = Options();
  options.verify_batch_size = 1;
  options.window_size = 7;
  const auto other = Start(options);
  ASSERT_TRUE(parts.ok() && other.ok());
  EXPECT_EQ(other->worker->info().fingerprint, parts->worker->info().fingerprint);
}

TEST_F(StartUpTest, RefusesToStartWhenTheSelfTestFails) {
  const auto parts = Start(Options(), Schedule::kFast);
  EXPECT_EQ(parts.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(parts.status().message()), HasSubstr("self-test"));
}

// What the self-test recorded is of a cache that is gone.
TEST_F(StartUpTest, WhatADeviceHasRecordedIsOfPassesThatServe) {
  auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 2});
  ASSERT_TRUE(ops.ok());
  std::vector<testing::RecordedPass> passes;
  const auto parts = StartUpOn(std::make_unique<testing::RecordingOps>(*std::move(ops), passes),
                               Options(), DecideWindow);
  ASSERT_TRUE(parts.ok()) << parts.status();
  const std::vector<int32_t> rungs = DefaultRungs(64);
  ASSERT_EQ(passes.size(), rungs.size() * testing::RecordingOps::kRunsToSettle);
  for (size_t i = 0; i < passes.size(); ++i) {
    EXPECT_EQ(passes[i].row_count, rungs[i / testing::RecordingOps::kRunsToSettle]);
    EXPECT_EQ(passes[i].sequence_rows.front(), std::min(passes[i].row_count, 16));
    EXPECT_EQ(passes[i].kv, passes.front().kv);
  }
}

TEST_F(StartUpTest, TheDeviceHasRoomForTheBlockTablesOfAllSessions) {
  StartupOptions options = Options();
  options.context_limit = 1000;
  const auto device = DeviceFor(options);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->max_rows, 64);
  EXPECT_EQ(device->max_table_entries, 8 * 63);
  ASSERT_TRUE(device->attention_shape.has_value());
  EXPECT_EQ(device->attention_shape->head_dim, testing::TinyModelOptions{}.head_dim);
  // A session has a row of the pass at least.
  options.max_sessions = 1000;
  const auto of_many = DeviceFor(options);
  ASSERT_TRUE(of_many.ok()) << of_many.status();
  EXPECT_EQ(of_many->max_table_entries, 64 * 63);
}

TEST_F(StartUpTest, NamesTheFlagAtFault) {
  const auto message = [&](auto change) {
    StartupOptions options = Options();
    change(options);
    return std::string(Start(options).status().message());
  };
  EXPECT_THAT(message([](auto& o) { o.window_size = 0; }), HasSubstr("--window_size"));
  EXPECT_THAT(message([](auto& o) { o.window_size = 257; }), HasSubstr("256"));
  EXPECT_THAT(message([](auto& o) { o.verify_batch_size = 0; }), HasSubstr("--verify_batch_size"));
  EXPECT_THAT(message([](auto& o) { o.max_sessions = 0; }), HasSubstr("--max_sessions"));
  EXPECT_THAT(message([](auto& o) { o.context_limit = 2049; }), HasSubstr("--context_limit"));
  EXPECT_THAT(message([](auto& o) { o.kv_size_mb = 0; }), HasSubstr("--kv_size_mb"));
}

}  // namespace
}  // namespace selfsame::verifier
