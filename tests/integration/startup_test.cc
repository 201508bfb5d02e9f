// Starts that must fail, with one clear line, and stops that must not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

using ::testing::HasSubstr;

// Both services share these rules.
class StartupTest : public ::testing::TestWithParam<const char*> {
 protected:
  // The program must end by itself; what it wrote to standard error.
  std::string ExpectFailure(const std::vector<std::string>& flags) {
    auto process = ChildProcess::Start(GetParam(), flags);
    EXPECT_TRUE(process.ok());
    EXPECT_EQ((*process)->Wait(), 1);
    return (*process)->stderr_text();
  }

  // As above, with one line that reports an error, the last.
  std::string ExpectOneLine(const std::vector<std::string>& flags) {
    const std::string text = ExpectFailure(flags);
    const std::string mark = absl::StrCat(GetParam(), ": error: ");
    const size_t begin = text.find(mark);
    EXPECT_NE(begin, std::string::npos) << text;
    if (begin == std::string::npos) return text;
    EXPECT_EQ(text.find('\n', begin), text.size() - 1) << text;
    return text.substr(begin);
  }

  std::vector<std::string> FlagsWith(const std::string& flag) {
    std::vector<std::string> flags = TestServiceFlags(model_.path());
    flags.push_back("--listen=127.0.0.1:0");
    flags.push_back(flag);
    return flags;
  }

  NearTieModel model_;
};

INSTANTIATE_TEST_SUITE_P(Services, StartupTest,
                         ::testing::Values("selfsame-decoder", "selfsame-verifier"),
                         [](const auto& info) {
                           return std::string(info.param).substr(sizeof("selfsame-") - 1);
                         });

TEST_P(StartupTest, BadFlagsNameFlagAndLimit) {
  struct Case {
    const char* flag;
    const char* says;
  };
  for (const Case& bad :
       {Case{"--threads=-1", "--threads: must be between 0 and 1024, not -1"},
        Case{"--kv_size_mb=0", "--kv_size_mb: must be between 1 and"},
        Case{"--context_limit=1", "--context_limit: must be between 2 and 1024, not 1"},
        Case{"--context_limit=1025", "--context_limit: must be between 2 and 1024, not 1025"},
        Case{"--window_size=0", "--window_size: must be between 1 and 256, not 0"},
        Case{"--window_size=257", "--window_size: must be between 1 and 256, not 257"},
        Case{"--listen=nonsense", "--listen: must be HOST:PORT"},
        Case{"--listen=127.0.0.1:99999", "--listen: must be HOST:PORT"},
        Case{"--metrics_listen=9090", "--metrics_listen: must be HOST:PORT"},
        Case{"--model_dir=", "--model_dir: is required"}}) {
    EXPECT_THAT(ExpectOneLine(FlagsWith(bad.flag)), HasSubstr(bad.says)) << bad.flag;
  }
}

TEST_P(StartupTest, UnknownFlagsAndArgumentsAreRefused) {
  EXPECT_THAT(ExpectFailure(FlagsWith("--no_such_flag=1")), HasSubstr("no_such_flag"));
  EXPECT_THAT(ExpectFailure(FlagsWith("--threads=many")), HasSubstr("threads"));
  EXPECT_THAT(ExpectOneLine(FlagsWith("stray")), HasSubstr("stray"));
}

TEST_P(StartupTest, PortInUseIsOneLine) {
  auto first = ChildProcess::Start(GetParam(), FlagsWith("--window_size=4"));
  ASSERT_TRUE(first.ok());
  const auto address = (*first)->ReadAddress();
  ASSERT_TRUE(address.ok()) << address.status();
  const std::string text = ExpectFailure(FlagsWith(absl::StrCat("--listen=", *address)));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("cannot listen on ", *address)));
}

TEST_P(StartupTest, MetricsPortInUseIsOneLine) {
  auto first = ChildProcess::Start(GetParam(), FlagsWith("--metrics_listen=127.0.0.1:0"));
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE((*first)->ReadAddress().ok());
  const auto line = (*first)->ReadLine();
  ASSERT_TRUE(line.ok()) << line.status();
  const std::string address = line->substr(line->rfind(' ') + 1);
  EXPECT_THAT(ExpectOneLine(FlagsWith(absl::StrCat("--metrics_listen=", address))),
              HasSubstr(absl::StrCat("cannot listen on ", address)));
}

TEST_P(StartupTest, MissingModelDirectoryIsNamed) {
  EXPECT_THAT(ExpectOneLine(FlagsWith("--model_dir=/no/such/dir")), HasSubstr("/no/such/dir"));
}

TEST_P(StartupTest, TruncatedWeightsAreNamed) {
  const std::string weights = model_.path() + "/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) / 2);
  EXPECT_THAT(ExpectOneLine(FlagsWith("--threads=1")), HasSubstr("model.safetensors"));
}

TEST_P(StartupTest, UnsupportedArchitectureIsNamed) {
  std::ofstream(model_.path() + "/config.json")
      << R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})";
  EXPECT_THAT(ExpectOneLine(FlagsWith("--threads=1")), HasSubstr("config.json"));
}

TEST_P(StartupTest, MalformedConfigIsNamed) {
  std::ofstream(model_.path() + "/config.json") << "{";
  EXPECT_THAT(ExpectOneLine(FlagsWith("--threads=1")), HasSubstr("config.json"));
}

TEST_P(StartupTest, MissingTokenizerIsNamed) {
  std::filesystem::remove(model_.path() + "/tokenizer.json");
  EXPECT_THAT(ExpectOneLine(FlagsWith("--threads=1")), HasSubstr("tokenizer.json"));
}

TEST_P(StartupTest, SignalWhileIdleExitsWithZero) {
  for (const int signal_number : {SIGTERM, SIGINT}) {
    auto process = ChildProcess::Start(GetParam(), FlagsWith("--threads=1"));
    ASSERT_TRUE(process.ok());
    ASSERT_TRUE((*process)->ReadAddress().ok());
    (*process)->Signal(signal_number);
    EXPECT_EQ((*process)->Wait(), 0) << (*process)->stderr_text();
  }
}

TEST(DecoderStartupTest, BadFlagsNameFlagAndLimit) {
  const NearTieModel model;
  struct Case {
    const char* flag;
    const char* says;
  };
  for (const Case& bad :
       {Case{"--max_batch_size=0", "--max_batch_size: must be between 1 and 4096, not 0"},
        Case{"--max_batch_tokens=1", "--max_batch_tokens: must be between 32 and 65536, not 1"},
        Case{"--prefill_chunk=257", "--prefill_chunk: must be between 0 and 256, not 257"},
        Case{"--max_inflight_windows=0", "--max_inflight_windows: must be between 1 and 64"},
        Case{"--max_window_age_ms=0", "--max_window_age_ms: must be between 1 and 3600000"},
        Case{"--max_queue=0", "--max_queue: must be between 1 and 65536, not 0"},
        Case{"--failover_timeout_ms=-1", "--failover_timeout_ms: must be between 0 and"},
        Case{"--verdict_timeout_ms=0", "--verdict_timeout_ms: must be between 1 and"},
        Case{"--class_slack=nan", "--class_slack: must be between 0 and 1, not nan"},
        Case{"--class_slack=-0.01", "--class_slack: must be between 0 and 1, not -0.01"},
        Case{"--class_slack=1.5", "--class_slack: must be between 0 and 1, not 1.5"},
        Case{"--doubt_margin=nan", "--doubt_margin: must be between 0 and 100, not nan"},
        Case{"--drain_timeout_ms=-1", "--drain_timeout_ms: must be between 0 and"},
        Case{"--schedule=slow", "--schedule: is \"slow\"; it may be fast or canonical"},
        Case{"--verifiers=here", "--verifiers: must be HOST:PORT with a port from 1"},
        Case{"--verifiers=a:1,a:1", "--verifiers: names a:1 twice"}}) {
    std::vector<std::string> flags = TestServiceFlags(model.path());
    flags.insert(flags.end(), {"--listen=127.0.0.1:0", bad.flag});
    auto process = ChildProcess::Start("selfsame-decoder", flags);
    ASSERT_TRUE(process.ok());
    EXPECT_EQ((*process)->Wait(), 1);
    EXPECT_THAT((*process)->stderr_text(), HasSubstr(bad.says));
  }
}

TEST(SyntheticModelTest, IsServedWithoutFiles) {
  const std::string format = "--load_format=synthetic:tiny:5:beta=0.1";
  auto cluster = Cluster::Start({.model_dir = "",
                                 .decoder_flags = {format},
                                 .verifier_flags = {format},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto request = MakeVerseRequests(1, 40)[0];
  const GenerateResult first = (*cluster)->client().Generate(request, {});
  const GenerateResult second = (*cluster)->client().Generate(request, {});
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(first.token_ids.size(), 40u);
  EXPECT_EQ(first.complete->fingerprint().size(), 64u);
  EXPECT_TRUE(IsSameAnswer(first, second));
}

TEST(DrainTest, RequestsInProgressFinishAfterSigterm) {
  auto cluster = Cluster::Start({.model_dir = TrainedModelDir(),
                                 .decoder_flags = {},
                                 .verifier_flags = {},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto request = MakeRequests(1, 300 / kTokenDivisor)[0];
  bool is_signalled = false;
  CallOptions options;
  options.on_chunk = [&](int) {
    if (!is_signalled) (*cluster)->decoder().Signal(SIGTERM);
    is_signalled = true;
    return true;
  };
  const GenerateResult result = (*cluster)->client().Generate(request, options);
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.token_ids.size(), 300u / kTokenDivisor);
  EXPECT_EQ((*cluster)->decoder().Wait(), 0);
}

TEST(DrainTest, WhatOutlivesTheDrainTimeoutIsUnavailable) {
  auto cluster = Cluster::Start({.model_dir = TrainedModelDir(),
                                 .decoder_flags = {"--drain_timeout_ms=0"},
                                 .verifier_flags = {},
                                 .other_verifiers = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto request = MakeOrdinary(MakeRequests(1, 900))[0];
  bool is_signalled = false;
  CallOptions options;
  options.on_chunk = [&](int) {
    if (!is_signalled) (*cluster)->decoder().Signal(SIGTERM);
    is_signalled = true;
    return true;
  };
  const GenerateResult result = (*cluster)->client().Generate(request, options);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
  EXPECT_EQ((*cluster)->decoder().Wait(), 0);
}

}  // namespace
}  // namespace selfsame::testing
