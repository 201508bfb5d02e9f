// Controls: the verifier's self-test finds out a forward pass whose order of additions depends on
// the row count, be it that of the whole fast schedule or that of one matrix product.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "common/canonical/rungs.h"
#include "common/canonical/self_test.h"
#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cuda/device_info.h"
#include "kernels/cuda/gemm_plan_file.h"
#include "kernels/cuda/gemm_search.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/testing/tiny_model.h"

namespace selfsame::testing {
namespace {

using cuda::GemmPlan;
using cuda::GemmShape;
using ::testing::ElementsAre;

constexpr int32_t kMaxRows = 512;

// Products large enough for the fastest algorithms to split k.
TinyModelOptions LargeLayers() {
  return {.vocab_size = 512,
          .hidden_size = 2048,
          .intermediate_size = 8192,
          .layer_count = 1,
          .head_count = 16,
          .kv_head_count = 8,
          .head_dim = 128};
}

BackendOptions Options(Schedule schedule) {
  return {.device = "cuda",
          .schedule = schedule,
          .max_rows = kMaxRows,
          .max_logit_rows = kMaxRows,
          .class_slack = 0.0};
}

SelfTestReport TestModel(const std::string& dir, const BackendOptions& options,
                         int32_t context_limit, const std::vector<int32_t>& rungs) {
  auto ops = CreateOps(options);
  SELFSAME_CHECK(ops.ok());
  const PassLimits limits = {
      .max_rows = kMaxRows, .max_logit_rows = kMaxRows, .context_limit = context_limit};
  auto model = Model::Load(dir, limits, *std::move(ops));
  SELFSAME_CHECK(model.ok());
  auto report = RunSelfTest(**model, rungs);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *std::move(report) : SelfTestReport();
}

TEST(ModelControlTest, TheSelfTestFindsTheFastScheduleOut) {
  TempDir dir;
  WriteTinyModel(dir.path(), LargeLayers());
  for (const Schedule schedule : {Schedule::kFast, Schedule::kCanonical}) {
    const SelfTestReport report =
        TestModel(dir.path(), Options(schedule), 1536, DefaultRungs(kMaxRows));
    EXPECT_EQ(report.failures.empty(), schedule == Schedule::kCanonical);
  }
}

// Within a context that no schedule splits, the fast one differs from the canonical one in the
// plans of its products alone, and runs those of its file without asking for their class.
class PlannedProductsTest : public ::testing::Test {
 protected:
  static constexpr int32_t kContextLimit = 128;  // the fast schedule's smallest split
  static constexpr int32_t kChangedRung = 64;
  static constexpr GemmShape kQkv = {.n = 2048, .k = 1024};
  static constexpr GemmShape kDown = {.n = 1024, .k = 8192};

  PlannedProductsTest()
      : stream_(Value(cuda::Stream::Create())),
        launcher_(Value(cuda::GemmLauncher::Create(stream_.get()))),
        scope_(Value(cuda::OpenDevice(0)).Scope()),
        plan_file_((std::filesystem::path(dir_.path()) / "plans.json").string()) {
    WriteTinyModel(dir_.path(), {.vocab_size = 512,
                                 .hidden_size = 1024,
                                 .intermediate_size = 8192,
                                 .layer_count = 2,
                                 .head_count = 8,
                                 .kv_head_count = 4,
                                 .head_dim = 128});
    const GemmShape out = {.n = 1024, .k = 1024};
    const GemmShape gate_up = {.n = 16384, .k = 1024};
    for (const GemmShape& shape : {kQkv, out, gate_up, kDown}) SaveCanonical(shape);
    SaveCanonical({.n = 512, .k = 1024, .output = cuda::GemmOutput::kFloat});
  }

  void Save(const GemmShape& shape, const std::vector<GemmPlan>& plans) {
    cuda::GemmPlanKey key;
    key.scope = scope_;
    key.shape = shape;
    key.options.rungs = cuda::RungsFor(kMaxRows, Schedule::kFast);
    SELFSAME_CHECK(cuda::SavePlans(plan_file_, key, plans).ok());
  }

  // One for each rung of the self-test, and one for a single row of logits.
  const std::vector<GemmPlan>& CanonicalPlans(const GemmShape& shape) {
    std::vector<GemmPlan>& plans = canonical_plans_[shape];
    if (plans.empty()) {
      plans = Value(cuda::SearchPlans(launcher_, shape,
                                      {.schedule = Schedule::kCanonical,
                                       .class_slack = 0.0,
                                       .rungs = {1, 8, kChangedRung, kMaxRows}}));
    }
    return plans;
  }

  void SaveCanonical(const GemmShape& shape) { Save(shape, CanonicalPlans(shape)); }

  // Canonical plans but for passes of kChangedRung rows, whose k is cut into so many slices.
  void SaveChanged(const GemmShape& shape, int32_t splits) {
    std::vector<GemmPlan> plans = CanonicalPlans(shape);
    const auto changed = std::find_if(
        plans.begin(), plans.end(), [](const GemmPlan& plan) { return plan.rows == kChangedRung; });
    ASSERT_NE(changed, plans.end());
    ASSERT_NE(changed->algorithm.splits, splits);
    const auto others = launcher_.Propose(shape, kChangedRung, splits, 1);
    ASSERT_FALSE(others.empty());
    changed->algorithm = others[0];
    Save(shape, plans);
  }

  std::string PlanText() const {
    std::ostringstream text;
    text << std::ifstream(plan_file_).rdbuf();
    return text.str();
  }

  // Rungs that pass the self-test under the plans of the file.
  std::vector<int32_t> PassingRungs() {
    BackendOptions options = Options(Schedule::kFast);
    options.plan_file = plan_file_;
    options.cuda_graphs = false;  // runs at the rows it is asked for
    const std::string before = PlanText();
    SelfTestReport report =
        TestModel(dir_.path(), options, kContextLimit, {8, kChangedRung, kMaxRows});
    EXPECT_EQ(PlanText(), before) << "a product had no plan in the file";
    return std::move(report.rungs);
  }

 private:
  cuda::Stream stream_;
  cuda::GemmLauncher launcher_;
  std::string scope_;
  TempDir dir_;
  std::string plan_file_;
  std::map<GemmShape, std::vector<GemmPlan>> canonical_plans_;
};

TEST_F(PlannedProductsTest, TheSelfTestFindsOneProductOfAnotherOrderOut) {
  EXPECT_THAT(PassingRungs(), ElementsAre(8, kChangedRung, kMaxRows));
  for (const int32_t splits : {1, 4}) {
    SaveChanged(kDown, splits);
    EXPECT_THAT(PassingRungs(), ElementsAre(8, kMaxRows)) << splits << " slices";
  }
  SaveCanonical(kDown);
  SaveChanged(kQkv, 2);
  EXPECT_THAT(PassingRungs(), ElementsAre(8, kMaxRows));
}

}  // namespace
}  // namespace selfsame::testing
