// Plans of matrix products on disk. Host code: runs without a device.

#include "kernels/cuda/gemm_plan_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace selfsame::cuda {
namespace {

class GemmPlanFileTest : public ::testing::Test {
 protected:
  GemmPlanFileTest()
      : folder_(std::filesystem::path(::testing::TempDir()) / "selfsame_plan_file_test"),
        path_(folder_ / "plans.json") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~GemmPlanFileTest() override { std::filesystem::remove_all(folder_); }

  // Names of the files in the folder.
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const std::filesystem::path folder_;
  const std::filesystem::path path_;
};

GemmPlanKey Key(int64_t n) {
  return {.scope = "device",
          .shape = {.n = n, .k = 64},
          .options = {.schedule = Schedule::kCanonical, .class_slack = 0.0, .rungs = {8, 16}}};
}

std::vector<GemmPlan> Plans() {
  std::vector<GemmPlan> plans(2);
  plans[0] = {.rows = 8, .algorithm = {}, .is_in_class = true, .time_us = 2.5f, .best_time_us = 2};
  plans[1] = {.rows = 16, .algorithm = {}, .is_in_class = true, .time_us = 3, .best_time_us = 3};
  plans[1].algorithm.blas.data[0] = 0x0123456789abcdef;
  plans[1].algorithm.splits = 2;
  plans[0].algorithm.stream_config = 3;
  return plans;
}

TEST_F(GemmPlanFileTest, PlansComeBackAndOthersStay) {
  ASSERT_TRUE(SavePlans(path_, Key(32), Plans()).ok());
  ASSERT_TRUE(SavePlans(path_, Key(48), {Plans()[0]}).ok());
  const auto loaded = LoadPlans(path_, Key(32));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_TRUE(loaded->has_value());
  ASSERT_EQ((*loaded)->size(), 2u);
  EXPECT_EQ((**loaded)[1].rows, 16);
  EXPECT_EQ((**loaded)[1].algorithm.blas.data[0], 0x0123456789abcdefu);
  EXPECT_EQ((**loaded)[1].algorithm.stream_config, -1);
  EXPECT_EQ((**loaded)[1].algorithm.splits, 2);
  EXPECT_EQ((**loaded)[0].algorithm.splits, 1);
  EXPECT_EQ((**loaded)[0].algorithm.stream_config, 3);
  EXPECT_EQ((**loaded)[0].time_us, 2.5f);
  EXPECT_TRUE((**loaded)[0].is_in_class);
}

TEST_F(GemmPlanFileTest, AnotherScopeRuleShapeOrLadderFindsNothing) {
  ASSERT_TRUE(SavePlans(path_, Key(32), Plans()).ok());
  GemmPlanKey scope = Key(32);
  scope.scope = "another library";
  GemmPlanKey rule = Key(32);
  rule.rule = "another rule";
  GemmPlanKey rungs = Key(32);
  rungs.options.rungs = {8, 16, 32};
  GemmPlanKey schedule = Key(32);
  schedule.options.schedule = Schedule::kFast;
  for (const GemmPlanKey& key : {scope, rule, rungs, schedule, Key(33)}) {
    const auto loaded = LoadPlans(path_, key);
    ASSERT_TRUE(loaded.ok());
    EXPECT_FALSE(loaded->has_value());
  }
}

// The slack chooses among fast plans only.
TEST_F(GemmPlanFileTest, TheSlackIsPartOfTheFastKeyAlone) {
  for (const Schedule schedule : {Schedule::kCanonical, Schedule::kFast}) {
    GemmPlanKey key = Key(32);
    key.options.schedule = schedule;
    key.options.class_slack = 0.03;
    ASSERT_TRUE(SavePlans(path_, key, Plans()).ok());
    key.options.class_slack = 0.05;
    const auto loaded = LoadPlans(path_, key);
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ(loaded->has_value(), schedule == Schedule::kCanonical);
  }
}

// As containers that share a folder, and whose processes have the same id.
TEST_F(GemmPlanFileTest, WritersAtATimeDoNotShareATemporaryFile) {
  std::latch start(2);
  const auto save = [&](int64_t n) {
    start.arrive_and_wait();
    for (int i = 0; i < 200; ++i) {
      const absl::Status status = SavePlans(path_, Key(n), Plans());
      EXPECT_TRUE(status.ok()) << status;
    }
  };
  std::thread other(save, 48);
  save(32);
  other.join();
  EXPECT_TRUE(LoadPlans(path_, Key(32)).ok());
  EXPECT_THAT(Files(), ::testing::ElementsAre("plans.json"));
}

TEST_F(GemmPlanFileTest, ATemporaryFileThatWasLeftBehindIsInNobodysWay) {
  std::ofstream(absl::StrCat(path_.string(), ".", getpid())) << "another's";
  std::ofstream(absl::StrCat(path_.string(), ".0")) << "another's";
  ASSERT_TRUE(SavePlans(path_, Key(32), Plans()).ok());
  EXPECT_EQ(Files().size(), 3u);
}

TEST_F(GemmPlanFileTest, OthersMayReadTheFileAsTheUmaskAllows) {
  const mode_t mask = umask(S_IRWXO | S_IWGRP);
  ASSERT_TRUE(SavePlans(path_, Key(32), Plans()).ok());
  umask(mask);
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            perms::owner_read | perms::owner_write | perms::group_read);
}

TEST_F(GemmPlanFileTest, AWriteThatFailsLeavesTheFileAsItWas) {
  ASSERT_TRUE(SavePlans(path_, Key(32), Plans()).ok());
  // A full disk: no file may have a byte.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status status = SavePlans(path_, Key(48), Plans());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path_.string()));
  EXPECT_THAT(Files(), ::testing::ElementsAre("plans.json"));
  const auto loaded = LoadPlans(path_, Key(32));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(loaded->has_value());
}

TEST_F(GemmPlanFileTest, AMissingFileIsEmpty) {
  const auto loaded = LoadPlans(path_, Key(32));
  ASSERT_TRUE(loaded.ok());
  EXPECT_FALSE(loaded->has_value());
}

TEST_F(GemmPlanFileTest, AFileOfAnOlderVersionIsEmptyAndReplaced) {
  ASSERT_TRUE(SavePlans(path_, Key(32), Plans()).ok());
  std::string text;
  std::getline(std::ifstream(path_), text, '\0');
  const std::string version = "\"version\": 3";
  ASSERT_NE(text.find(version), std::string::npos);
  std::ofstream(path_) << text.replace(text.find(version), version.size(), "\"version\": 2");
  const auto old = LoadPlans(path_, Key(32));
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_FALSE(old->has_value());
  ASSERT_TRUE(SavePlans(path_, Key(48), Plans()).ok());
  const auto replaced = LoadPlans(path_, Key(48));
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_TRUE(replaced->has_value());
}

TEST_F(GemmPlanFileTest, MalformedFilesAreErrorsThatNameThem) {
  ASSERT_TRUE(SavePlans(path_, Key(32), Plans()).ok());
  std::string text;
  std::getline(std::ifstream(path_), text, '\0');
  const std::string good_hex = "efcdab89";
  const std::string bad_hex = std::string(text).replace(text.find(good_hex), 8, "zzzzzzzz");
  const std::string bad_rows =
      std::string(text).replace(text.find("\"rows\": 16"), 10, "\"rows\": 8");
  const std::string bad_splits =
      std::string(text).replace(text.find("\"splits\": 2"), 11, "\"splits\": 9");
  for (const std::string& content :
       {std::string("{"), std::string("[]"), std::string("{\"version\": 4, \"entries\": []}"),
        std::string("{\"version\": 3, \"entries\": 3}"), bad_hex, bad_rows, bad_splits}) {
    std::ofstream(path_) << content;
    const auto loaded = LoadPlans(path_, Key(32));
    EXPECT_FALSE(loaded.ok()) << content;
    EXPECT_THAT(std::string(loaded.status().message()), ::testing::HasSubstr(path_.string()));
  }
}

TEST_F(GemmPlanFileTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_FALSE(SavePlans("/nonexistent/plans.json", Key(32), Plans()).ok());
}

}  // namespace
}  // namespace selfsame::cuda
