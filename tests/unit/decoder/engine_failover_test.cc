// Loss of verifiers, refusals and malformed verdicts: the answer stays the canonical one, or the
// request fails with what it should.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/errors.h"
#include "tests/unit/decoder/canonical_verifier.h"
#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class FailoverTest : public CoreTest {
 protected:
  void ExpectAllCanonical(const std::vector<std::shared_ptr<RecordingSink>>& sinks,
                          int32_t max_tokens) {
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectCanonical(*sinks[i], TestRequest(static_cast<int>(i), max_tokens));
    }
  }
};

TEST_F(FailoverTest, AVerifierThatComesAndGoesDoesNotChangeTheAnswer) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    Create({.window_size = 8, .seed = seed});
    auto sinks = SubmitMany(6, 60);
    int losses = 0;
    RunUntil([&] {
      if (losses < 25 && Below(30) == 0) {
        verifiers_[0]->Disconnect();
        for (uint32_t i = Below(4); i > 0; --i) StepCore();
        verifiers_[0]->Connect();
        ++losses;
      }
      return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->is_done(); });
    });
    EXPECT_GT(losses, 5);
    ExpectAllCanonical(sinks, 60);
    ExpectNothingLeft();
  }
}

TEST_F(FailoverTest, SessionsMoveToAnotherVerifierWithTheSameFingerprint) {
  Create({.fingerprints = {"F", "F"}});
  auto sinks = SubmitMany(6, 60);
  RunUntil([&] { return sinks[0]->token_ids.size() >= 4; });
  EXPECT_GT(verifiers_[0]->opening_count, 0);
  EXPECT_GT(verifiers_[1]->opening_count, 0) << "sessions are spread";
  const int before = verifiers_[1]->opening_count;
  verifiers_[0]->Disconnect();
  RunAll(sinks);
  EXPECT_GT(verifiers_[1]->opening_count, before);
  const SessionOpening& reopened = verifiers_[1]->openings.back();
  EXPECT_FALSE(reopened.committed_token_ids.empty());
  ExpectAllCanonical(sinks, 60);
  ExpectNothingLeft();
}

TEST_F(FailoverTest, NoVerifierWithTheSameFingerprintMeansUnavailableAfterTheTimeout) {
  Create({.fingerprints = {"F", "F"}});
  auto sink = Submit(TestRequest(1, 60));
  RunUntil([&] { return sink->token_ids.size() >= 4; });
  const size_t serving = verifiers_[0]->session_count() > 0 ? 0 : 1;
  verifiers_[1 - serving]->Disconnect();
  CanonicalVerifier other(static_cast<int>(1 - serving), "G");
  other.Attach(this);
  other.Connect();
  verifiers_[serving]->Disconnect();
  for (int i = 0; i < 900; ++i) StepCore();
  EXPECT_FALSE(sink->is_done());
  for (int i = 0; i < 200; ++i) StepCore();
  ASSERT_TRUE(sink->is_done());
  EXPECT_TRUE(absl::IsUnavailable(sink->status)) << sink->status;
  EXPECT_THAT(std::string(sink->status.message()), HasSubstr("the stream broke"));
  const auto expected = TinyWorld::Get().Answer(TestRequest(1, 60)).token_ids;
  ASSERT_GE(sink->token_ids.size(), 4u);
  EXPECT_TRUE(std::equal(sink->token_ids.begin(), sink->token_ids.end(), expected.begin()));
  EXPECT_EQ(core_->stats().running_requests, 0);
}

TEST_F(FailoverTest, ARequestWaitsForAVerifierThatIsNotUpYet) {
  Create({.is_connected = false});
  auto sink = Submit(TestRequest(1, 20));
  for (int i = 0; i < 500; ++i) StepCore();
  EXPECT_FALSE(sink->started.has_value());
  verifiers_[0]->Connect();
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 20));
}

TEST_F(FailoverTest, ARequestThatNoVerifierEverServesIsUnavailable) {
  Create({.is_connected = false});
  auto sink = Submit(TestRequest(1, 20));
  StepCore();
  ASSERT_TRUE(core_->NextWake().has_value());
  clock_.Advance(std::chrono::ceil<milliseconds>(*core_->NextWake() - clock_.Now()));
  StepCore();
  ASSERT_TRUE(sink->is_done());
  EXPECT_TRUE(absl::IsUnavailable(sink->status));
  EXPECT_EQ(core_->stats().waiting_requests, 0);
}

TEST_F(FailoverTest, AnotherFingerprintThanExpectedIsRefusedAtOnce) {
  Create({});
  GenerationRequest request = TestRequest(1, 20);
  request.expected_fingerprint = "G";
  auto sink = Submit(request);
  StepCore();
  ASSERT_TRUE(sink->is_done());
  EXPECT_TRUE(absl::IsFailedPrecondition(sink->status)) << sink->status;
  request.expected_fingerprint = "F";
  sink = Submit(request);
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 20));
}

TEST_F(FailoverTest, TheVerifierWithTheExpectedFingerprintIsChosen) {
  Create({.fingerprints = {"G", "F"}});
  GenerationRequest request = TestRequest(1, 20);
  request.expected_fingerprint = "F";
  auto sink = Submit(request);
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 20));
  EXPECT_EQ(verifiers_[0]->opening_count, 0);
}

TEST_F(FailoverTest, MalformedVerdictsResetTheLinkAndTheAnswerStands) {
  const std::vector<std::function<void(Verdict&)>> faults = {
      [](Verdict& v) { v.epoch += 1; },
      [](Verdict& v) { v.committed_length += 1; },
      [](Verdict& v) { v.committed_length = -1; },
      [](Verdict& v) { v.canonical_token = 1 << 20; },
      [](Verdict& v) { v.logprobs.clear(); },
      [](Verdict& v) { v.window_id += 1; },
      [](Verdict& v) { v.end = End::kMaxTokens; },
      [](Verdict& v) { v.outcome = Outcome::kDiscarded; },
  };
  for (size_t f = 0; f < faults.size(); ++f) {
    SCOPED_TRACE(f);
    Create({.window_size = 8});
    int verdicts = 0;
    verifiers_[0]->tamper = [&](Verdict& verdict) {
      // The opening, a window's, and one some time later.
      ++verdicts;
      if (verdicts == 1 || verdicts == 8 || verdicts == 20) faults[f](verdict);
    };
    auto sinks = SubmitMany(4, 40);
    RunAll(sinks);
    EXPECT_GE(verifiers_[0]->reset_count, 1);
    ExpectAllCanonical(sinks, 40);
    ExpectNothingLeft();
  }
}

TEST_F(FailoverTest, VerdictsForUnknownSessionsAreIgnored) {
  Create({});
  auto sink = Submit(TestRequest(1, 20));
  Verdict verdict;
  verdict.session_id = 12345;
  verdict.window_id = 1;
  OnVerdict(0, verdict);
  OnSessionError(0, 12345, InternalError("no such session"));
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 20));
  EXPECT_EQ(verifiers_[0]->reset_count, 0);
}

TEST_F(FailoverTest, ASessionThatIsRefusedForNowIsTriedAgainWithBackoff) {
  Create({});
  verifiers_[0]->refuse = [](int n) {
    if (n > 3) return absl::OkStatus();
    return n % 2 == 1 ? ResourceExhaustedError("sessions", 10) : UnavailableError("draining");
  };
  auto sink = Submit(TestRequest(1, 20));
  const SteadyTime start = clock_.Now();
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 20));
  EXPECT_EQ(verifiers_[0]->opening_count, 4);
  EXPECT_GE(clock_.Now() - start, milliseconds(20 + 40 + 80));
  std::set<uint64_t> ids;
  for (const auto& opening : verifiers_[0]->openings) ids.insert(opening.session_id);
  EXPECT_EQ(ids.size(), 4u) << "session ids are never reused";
}

TEST_F(FailoverTest, AVerifierThatRefusesIsLeftForOneThatDoesNot) {
  Create({.fingerprints = {"F", "F"}});
  verifiers_[0]->refuse = [](int) { return ResourceExhaustedError("sessions", 10); };
  auto sinks = SubmitMany(4, 20);
  RunAll(sinks);
  ExpectAllCanonical(sinks, 20);
  EXPECT_GT(verifiers_[0]->opening_count, 0);
  EXPECT_LE(verifiers_[0]->opening_count, 4) << "each request asks it once at most";
}

TEST_F(FailoverTest, ARefusalsRetryHintIsHeldTo) {
  Create({});
  verifiers_[0]->refuse = [](int n) {
    return n == 1 ? ResourceExhaustedError("sessions", 600) : absl::OkStatus();
  };
  const SteadyTime start = clock_.Now();
  auto sink = Submit(TestRequest(1, 20));
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 20));
  EXPECT_GE(clock_.Now() - start, milliseconds(600));
  EXPECT_EQ(verifiers_[0]->opening_count, 2);
}

TEST_F(FailoverTest, ASessionThatIsAlwaysRefusedFailsAfterTheTimeout) {
  Create({});
  verifiers_[0]->refuse = [](int) { return ResourceExhaustedError("sessions", 10); };
  auto sink = Submit(TestRequest(1, 20));
  RunAll({sink});
  EXPECT_TRUE(absl::IsResourceExhausted(sink->status)) << sink->status;
  EXPECT_LT(verifiers_[0]->opening_count, 10);
}

TEST_F(FailoverTest, OtherSessionErrorsFailTheRequestWithTheirStatus) {
  Create({});
  verifiers_[0]->refuse = [](int) { return InvalidArgumentError("top_p", "is out of range"); };
  auto sink = Submit(TestRequest(1, 20));
  RunAll({sink});
  EXPECT_TRUE(absl::IsInvalidArgument(sink->status));
  ExpectNothingLeft();
}

TEST_F(FailoverTest, AFullVerifierIsWaitedForWithoutATimeout) {
  Create({.is_connected = false});
  verifiers_[0]->max_sessions = 1;
  verifiers_[0]->Connect();
  auto sinks = SubmitMany(4, 40);
  RunUntil([&] {
    EXPECT_LE(verifiers_[0]->session_count(), 1u);
    clock_.Advance(milliseconds(20));  // in all far past the failover timeout
    return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->is_done(); });
  });
  ExpectAllCanonical(sinks, 40);
}

TEST_F(FailoverTest, ARequestPreemptedBeforeItHadASessionGetsOneLater) {
  Create({.kv_block_count = 4, .is_connected = false});
  verifiers_[0]->max_sessions = 1;
  verifiers_[0]->Connect();
  GenerationRequest first = TestRequest(0, 62);
  first.stop_token_ids.clear();
  const GenerationRequest second = TestRequest(1, 2);
  // Admitted in one step, they find room for one session.
  const auto sinks = std::vector{Submit(first), Submit(second)};
  RunAll(sinks);
  EXPECT_GT(core_->stats().preemptions, 0);
  ExpectCanonical(*sinks[0], first);
  ExpectCanonical(*sinks[1], second);
  ExpectNothingLeft();
}

TEST_F(FailoverTest, ASessionOpenedOnANewStreamBeforeTheLossOfTheOldWasKnownIsClosed) {
  Create({});
  const auto sinks = SubmitMany(2, 60);
  RunUntil([&] { return sinks[0]->token_ids.size() >= 4; });
  core_->OnVerifierDown(0, UnavailableError("the old stream broke"));
  verifiers_[0]->Connect();
  RunAll(sinks);
  ExpectAllCanonical(sinks, 60);
  ExpectNothingLeft();
}

TEST_F(FailoverTest, WindowsAreNoLargerThanTheVerifierTakes) {
  Create({.window_size = 64, .is_connected = false});
  verifiers_[0]->max_window_size = 5;
  verifiers_[0]->Connect();
  RunAndCompare(4, 60);
}

}  // namespace
}  // namespace selfsame::decoder
