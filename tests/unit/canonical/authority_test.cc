#include "common/canonical/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "common/canonical/rungs.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/tiny_model.h"

namespace selfsame {
namespace {

using ::testing::HasSubstr;

class AuthorityTest : public ::testing::Test {
 protected:
  AuthorityTest() {
    testing::WriteTinyModel(dir_.path(), {});
    std::ofstream(dir_.path() + "/tokenizer.json") << "{}";
  }

  absl::StatusOr<Authority> Prove(Schedule schedule, int32_t max_rows) {
    auto ops = CreateCpuOps({.schedule = schedule, .thread_count = 2});
    EXPECT_TRUE(ops.ok());
    const ModelSource source{.model_dir = dir_.path(), .synthetic = std::nullopt};
    auto model = Model::Load(
        source, {.max_rows = max_rows, .max_logit_rows = max_rows, .context_limit = 1024},
        *std::move(ops));
    EXPECT_TRUE(model.ok()) << model.status();
    return ProveAuthority(source, **model, max_rows);
  }

  testing::TempDir dir_;
};

TEST_F(AuthorityTest, IsTheSameWhateverTheLargestPass) {
  const auto small = Prove(Schedule::kCanonical, 24);
  const auto large = Prove(Schedule::kCanonical, 100);
  ASSERT_TRUE(small.ok() && large.ok()) << small.status() << large.status();
  EXPECT_EQ(small->fingerprint, large->fingerprint);
  EXPECT_EQ(small->rungs, DefaultRungs(24));
  EXPECT_EQ(large->rungs, DefaultRungs(100));
}

TEST_F(AuthorityTest, TheFastScheduleHasNone) {
  const absl::Status status = Prove(Schedule::kFast, 64).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("self-test"));
}

}  // namespace
}  // namespace selfsame
