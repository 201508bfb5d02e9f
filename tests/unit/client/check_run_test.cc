#include "decoder/client/check_run.h"

#include <cmath>

#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace selfsame::client {
namespace {

constexpr int kCases = 6;

CheckOptions MakeOptions() {
  CheckOptions options;
  std::vector<std::string> prompts;
  for (int i = 0; i < kCases; ++i) prompts.push_back("prompt " + std::to_string(i));
  options.cases = BuildCases(prompts, {});
  options.phases = {{.concurrency = 2, .ordinary_share = 0.0},
                    {.concurrency = 4, .ordinary_share = 0.5}};
  return options;
}

void Quiet(const std::string&) {}

TEST(CheckRunTest, AServerThatNeverChangesPasses) {
  FakeServer server;
  const auto result = RunCheckPhases(server, MakeOptions(), Quiet);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->phases.size(), 4u);
  EXPECT_EQ(result->fingerprint, "fp");
  EXPECT_EQ(result->model, "fake");
  EXPECT_EQ(result->reference.size(), static_cast<size_t>(kCases));
  const PhaseFigures total = result->Total();
  EXPECT_EQ(total.deterministic.requests, 3 * kCases);
  EXPECT_EQ(total.ordinary.requests, 2 * kCases);
  EXPECT_EQ(total.deterministic.divergences, 0);
  EXPECT_EQ(total.ordinary.divergences, 0);
  EXPECT_EQ(total.deterministic.output_tokens, 3 * kCases * 8);
  EXPECT_EQ(total.windows, 3 * kCases * 3);
  EXPECT_EQ(total.rollbacks, 3 * kCases);
  EXPECT_EQ(total.rolled_back_tokens, 3 * kCases * 5);
  EXPECT_EQ(total.redecoded_tokens, 3 * kCases * 4);
}

TEST(CheckRunTest, OneLogprobBitOfOneDeterministicAnswerIsADivergence) {
  // The third request of the phase after the two one-at-a-time ones.
  FakeServer server([](const Request&, Answer answer, int index) {
    if (index == 2 * kCases + 2) answer.logprobs[4] = std::nextafter(answer.logprobs[4], 0.0f);
    return answer;
  });
  const auto result = RunCheckPhases(server, MakeOptions(), Quiet);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->phases[2].deterministic.divergences, 1);
  EXPECT_EQ(result->Total().deterministic.divergences, 1);
  EXPECT_EQ(result->Total().deterministic.first_positions, std::vector<size_t>{4});
}

TEST(CheckRunTest, OrdinaryAnswersCountAsDivergedWhenATokenChangesNotForRoundingAlone) {
  FakeServer server([](const Request& request, Answer answer, int index) {
    if (request.is_deterministic || index < 2 * kCases) return answer;
    answer.logprobs[1] = -9.0f;
    if (*request.seed % 2 == 0) answer.token_ids[2] = 1;
    return answer;
  });
  const auto result = RunCheckPhases(server, MakeOptions(), Quiet);
  ASSERT_TRUE(result.ok()) << result.status();
  const PhaseFigures total = result->Total();
  EXPECT_EQ(total.ordinary.logprob_divergences, kCases);
  EXPECT_EQ(total.ordinary.divergences, kCases / 2);
  EXPECT_EQ(total.ordinary.first_positions, std::vector<size_t>(kCases / 2, 2));
  EXPECT_EQ(total.deterministic.divergences, 0);
}

TEST(CheckRunTest, FailedRequestsAreCountedAndTheRunGoesOn) {
  FakeServer server([](const Request&, Answer answer, int index) -> absl::StatusOr<Answer> {
    if (index == 1 || index == 2 * kCases) return UnavailableError("gone");
    return answer;
  });
  const auto result = RunCheckPhases(server, MakeOptions(), Quiet);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->Total().deterministic.errors, 2);
  EXPECT_EQ(result->Total().deterministic.divergences, 0);
  EXPECT_TRUE(result->reference.empty());
}

TEST(CheckRunTest, SavedAnswersTakeThePlaceOfTheRunsOwn) {
  CheckOptions options = MakeOptions();
  options.phases.clear();
  FakeServer first;
  const auto saved = RunCheckPhases(first, options, Quiet);
  ASSERT_TRUE(saved.ok());
  options.reference =
      SavedReference{saved->fingerprint, saved->model, options.cases, saved->reference};

  FakeServer changed([](const Request&, Answer answer, int index) {
    if (index == 3) answer.token_ids[7] = 0;
    return answer;
  });
  const auto result = RunCheckPhases(changed, options, Quiet);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->phases[0].deterministic.divergences, 1);
}

TEST(CheckRunTest, PhasesOnlyCompareWithTheSavedAnswersOfBothKinds) {
  CheckOptions options = MakeOptions();
  FakeServer first;
  const auto saved = RunCheckPhases(first, options, Quiet);
  ASSERT_TRUE(saved.ok());
  options.reference = SavedReference{saved->fingerprint, saved->model, options.cases,
                                     saved->reference, saved->ordinary_reference};
  options.phases_only = true;
  int sent = 0;
  FakeServer changed([&sent](const Request& request, Answer answer, int) {
    ++sent;
    if (!request.is_deterministic) answer.token_ids[7] = 0;
    return answer;
  });
  const auto result = RunCheckPhases(changed, options, Quiet);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->phases.size(), 2u);
  EXPECT_EQ(sent, 3 * kCases);
  EXPECT_EQ(result->Total().deterministic.divergences, 0);
  EXPECT_EQ(result->Total().ordinary.divergences, kCases);
}

// Runs against a server that must not be asked, and expects the error to have `text`.
void ExpectPhasesOnlyIsRefused(CheckOptions options, const char* text) {
  options.phases_only = true;
  int sent = 0;
  FakeServer server([&sent](const Request&, Answer answer, int) {
    ++sent;
    return answer;
  });
  const absl::Status status = RunCheckPhases(server, options, Quiet).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(FieldOf(status), "--phases_only");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(text));
  EXPECT_EQ(sent, 0);
}

CheckOptions WithReference(CheckOptions options) {
  const std::vector<Answer> answers(options.cases.size(), MakeAnswer(1));
  options.reference = SavedReference{"fp", "fake", options.cases, answers, answers};
  return options;
}

TEST(CheckRunTest, PhasesOnlyNeedsAReferenceAndAPhase) {
  ExpectPhasesOnlyIsRefused(MakeOptions(), "--reference");
  CheckOptions options = WithReference(MakeOptions());
  options.phases.clear();
  ExpectPhasesOnlyIsRefused(options, "phase in --phases");
}

TEST(CheckRunTest, PhasesOnlyWithOrdinaryRequestsNeedsOrdinaryAnswers) {
  CheckOptions options = WithReference(MakeOptions());
  options.reference->ordinary_answers.clear();
  ExpectPhasesOnlyIsRefused(options, "ordinary answers");
  options.phases = {{.concurrency = 2, .ordinary_share = 0.0}};
  options.phases_only = true;
  FakeServer server;
  EXPECT_TRUE(RunCheckPhases(server, options, Quiet).ok());
}

TEST(CheckRunTest, AnotherFingerprintIsNotCompared) {
  CheckOptions options = MakeOptions();
  options.reference =
      SavedReference{"other", "fake", options.cases, std::vector<Answer>(options.cases.size())};
  FakeServer server;
  const auto result = RunCheckPhases(server, options, Quiet);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CheckRunTest, VerifiersWithAnotherFingerprintEndTheRunBeforeItBegins) {
  CheckOptions options = MakeOptions();
  options.reference =
      SavedReference{"other", "fake", options.cases, std::vector<Answer>(options.cases.size())};
  int sent = 0;
  FakeServer server([&sent](const Request&, Answer answer, int) {
    ++sent;
    return answer;
  });
  server.verifiers = {{"127.0.0.1:1", true, "fp", ""}};
  EXPECT_EQ(RunCheckPhases(server, options, Quiet).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sent, 0);
}

TEST(CheckRunTest, AFingerprintThatChangesDuringTheRunEndsIt) {
  FakeServer server([](const Request& request, Answer answer, int index) {
    if (request.is_deterministic && index >= 2 * kCases) answer.fingerprint = "later";
    return answer;
  });
  EXPECT_EQ(RunCheckPhases(server, MakeOptions(), Quiet).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace selfsame::client
