#include "common/canonical/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/tiny_model.h"

namespace selfsame {
namespace {

class FingerprintTest : public ::testing::Test {
 protected:
  FingerprintTest() { WriteFile("tokenizer.json", "{}"); }

  absl::StatusOr<std::string> TryFingerprint(int32_t context_limit, int32_t max_rows,
                                             std::string_view golden_digest) {
    auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 1});
    EXPECT_TRUE(ops.ok());
    auto model = Model::Load(
        dir_.path(),
        {.max_rows = max_rows, .max_logit_rows = max_rows, .context_limit = context_limit},
        *std::move(ops));
    EXPECT_TRUE(model.ok()) << model.status();
    return ComputeFingerprint({.model_dir = dir_.path(), .synthetic = std::nullopt}, **model,
                              "arithmetic", golden_digest);
  }

  std::string Fingerprint(int32_t context_limit = 64, int32_t max_rows = 4,
                          std::string_view golden_digest = "golden") {
    auto fingerprint = TryFingerprint(context_limit, max_rows, golden_digest);
    EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
    return *fingerprint;
  }

  void WriteFile(const std::string& name, const std::string& text) {
    std::ofstream(dir_.path() + "/" + name) << text;
  }

  testing::TempDir dir_;
};

TEST_F(FingerprintTest, IsRepeatableAndIgnoresPassSizes) {
  testing::WriteTinyModel(dir_.path(), {});
  const std::string fingerprint = Fingerprint();
  EXPECT_EQ(fingerprint.size(), 64u);
  EXPECT_EQ(Fingerprint(), fingerprint);
  EXPECT_EQ(Fingerprint(64, 32), fingerprint);
}

TEST_F(FingerprintTest, ChangesWithEverythingAnAnswerMayDependOn) {
  testing::WriteTinyModel(dir_.path(), {});
  const std::string fingerprint = Fingerprint();
  EXPECT_NE(Fingerprint(65), fingerprint);
  EXPECT_NE(Fingerprint(64, 4, "other golden bits"), fingerprint);

  testing::WriteTinyModel(dir_.path(), {.seed = 2});
  EXPECT_NE(Fingerprint(), fingerprint);
  testing::WriteTinyModel(dir_.path(), {});
  EXPECT_EQ(Fingerprint(), fingerprint);

  WriteFile("generation_config.json", R"({"eos_token_id": 2, "top_p": 0.5})");
  EXPECT_NE(Fingerprint(), fingerprint);
  testing::WriteTinyModel(dir_.path(), {});

  std::string latest = fingerprint;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    WriteFile(name, "{ }");
    const std::string with_file = Fingerprint();
    EXPECT_NE(with_file, latest) << name;
    latest = with_file;
  }
}

TEST_F(FingerprintTest, AMissingTokeniserIsNamed) {
  testing::WriteTinyModel(dir_.path(), {});
  std::filesystem::remove(dir_.path() + "/tokenizer.json");
  const auto fingerprint = TryFingerprint(64, 4, "golden");
  EXPECT_EQ(fingerprint.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(fingerprint.status().message()), ::testing::HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace selfsame
