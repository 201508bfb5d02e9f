// Verifiers that stay connected and do not answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "decoder/engine/sessions.h"
#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kTimeout{300};

class SilentVerifierTest : public CoreTest {
 protected:
  // Runs the core and the verifiers but `silent` until all are done.
  void RunWithout(size_t silent, const std::vector<std::shared_ptr<RecordingSink>>& sinks) {
    for (int i = 0; i < 100000; ++i) {
      if (std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->is_done(); })) {
        return;
      }
      StepCore();
      for (size_t v = 0; v < verifiers_.size(); ++v) {
        if (v != silent) verifiers_[v]->ProcessOne();
      }
    }
    FAIL() << "no progress";
  }
};

TEST_F(SilentVerifierTest, ItsSessionsMoveToOneThatAnswersAndTheAnswersStand) {
  Create({.fingerprints = {"F", "F"}, .verdict_timeout = kTimeout});
  const auto sinks = SubmitMany(6, 60);
  RunUntil([&] { return sinks[0]->token_ids.size() >= 4 && sinks[1]->token_ids.size() >= 4; });
  ASSERT_GT(verifiers_[0]->session_count(), 0u);
  ASSERT_GT(verifiers_[1]->session_count(), 0u);
  const SteadyTime begin = clock_.Now();
  RunWithout(0, sinks);
  EXPECT_GE(clock_.Now() - begin, kTimeout);
  EXPECT_LT(clock_.Now() - begin, 2 * kTimeout + milliseconds(600));
  for (int i = 0; i < 6; ++i) ExpectCanonical(*sinks[static_cast<size_t>(i)], TestRequest(i, 60));
  EXPECT_EQ(verifiers_[1]->reset_count, 0);
  ExpectNothingLeft();
  EXPECT_EQ(verifiers_[0]->reset_count, 1);
}

TEST_F(SilentVerifierTest, OneThatOnlyReconnectsIsNotPreferredForHavingNoSessions) {
  Create({.fingerprints = {"F", "F"}, .verdict_timeout = kTimeout});
  const auto sinks = SubmitMany(4, 60);
  // The link comes up again at once; nothing else does.
  for (int i = 0; i < 2000; ++i) {
    StepCore();
    verifiers_[1]->ProcessOne();
    if (core_->stats().verifiers_up < 2) OnVerifierUp(0, {.fingerprint = "F"});
  }
  RunWithout(0, sinks);
  for (int i = 0; i < 4; ++i) ExpectCanonical(*sinks[static_cast<size_t>(i)], TestRequest(i, 60));
}

TEST_F(SilentVerifierTest, WithoutAnotherTheRequestIsUnavailableAfterBothTimeouts) {
  Create({.verdict_timeout = kTimeout});
  const auto sink = Submit(TestRequest(1, 60));
  GenerationRequest plain = TestRequest(2, 60);
  plain.is_deterministic = false;
  const SteadyTime begin = clock_.Now();
  const auto ordinary = Submit(plain);
  RunWithout(0, {ordinary});
  EXPECT_TRUE(ordinary->complete.has_value()) << ordinary->status;
  EXPECT_LT(clock_.Now() - begin, kTimeout);
  RunWithout(0, {sink});
  EXPECT_TRUE(absl::IsUnavailable(sink->status)) << sink->status;
  EXPECT_THAT(std::string(sink->status.message()), HasSubstr("owes verdicts"));
  EXPECT_GE(clock_.Now() - begin, kTimeout + kFailoverTimeout);
  EXPECT_LE(clock_.Now() - begin, kTimeout + kFailoverTimeout + milliseconds(10));
  EXPECT_EQ(core_->stats().running_requests, 0);
  EXPECT_EQ(core_->stats().sessions, 0);
}

TEST_F(SilentVerifierTest, TheEngineWakesForIt) {
  Create({.verdict_timeout = kTimeout});
  const auto sink = Submit(TestRequest(1, 60));
  const SteadyTime begin = clock_.Now();
  while (*core_->Step()) {
  }
  ASSERT_TRUE(core_->NextWake().has_value());
  EXPECT_EQ(*core_->NextWake(), begin + kTimeout);
}

TEST_F(SilentVerifierTest, SilenceIsNoFaultWhileNothingIsOwed) {
  Create({.verdict_timeout = kTimeout});
  auto sink = Submit(TestRequest(1, 20));
  RunAll({sink});
  clock_.Advance(10 * kTimeout);
  sink = Submit(TestRequest(1, 20));
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 20));
  EXPECT_EQ(verifiers_[0]->reset_count, 0);
}

class CountingLink final : public VerifierLink {
 public:
  void OpenSession(SessionOpening opening) override { opened.push_back(opening.session_id); }
  void SubmitWindow(Window) override {}
  void CloseSession(uint64_t session_id) override { closed.push_back(session_id); }
  void Reset(absl::Status) override { ++reset_count; }

  std::vector<uint64_t> opened;
  std::vector<uint64_t> closed;
  int reset_count = 0;
};

class SessionsTest : public ::testing::Test {
 protected:
  SessionsTest() { sessions_.OnUp(0, {.fingerprint = "F", .max_window_size = 8}, now_); }
  ~SessionsTest() override {
    for (const auto& request : requests_) sessions_.Close(*request);
  }

  Request& Open(int32_t prompt_length) {
    GenerationRequest params;
    params.prompt_token_ids.assign(static_cast<size_t>(prompt_length), 7);
    params.max_tokens = 100;
    params.is_deterministic = true;
    OutputStream output = *OutputStream::Create(TinyWorld::Get().tokenizer(), {}, {}, 100);
    requests_.push_back(std::make_unique<Request>(requests_.size() + 1, std::move(params), nullptr,
                                                  std::move(output)));
    Request& request = *requests_.back();
    request.verification.emplace(SpeculationParams{.prompt_length = prompt_length,
                                                   .max_tokens = 100,
                                                   .stop_token_ids = {},
                                                   .vocab_size = 100,
                                                   .max_inflight_windows = 2});
    EXPECT_TRUE(sessions_.Seek(request, now_).value_or(false));
    sessions_.Open(request, now_);
    return request;
  }

  void GiveOpeningVerdict(const Request& request) {
    Verdict verdict;
    verdict.session_id = request.verification->speculation.session_id();
    verdict.committed_length = request.prompt_length() + 1;
    verdict.canonical_token = 5;
    verdict.logprobs = {-1.0f};
    EXPECT_TRUE(sessions_.OnVerdict(0, verdict, now_).has_value());
  }

  void Advance(milliseconds by) {
    now_ += by;
    sessions_.ExpireVerdicts(now_);
  }

  SteadyTime now_ = SteadyTime() + std::chrono::hours(1);
  CountingLink link_;
  AdaptiveWindowPolicy policy_{{}};
  EngineObserver observer_;
  Sessions sessions_{{.window_size = 8, .verdict_timeout = kTimeout}, {&link_}, policy_, observer_};
  std::vector<std::unique_ptr<Request>> requests_;
};

TEST_F(SessionsTest, ALongPromptIsGivenTimeToBePrefilled) {
  Open(3 * kTokensOfVerdictTimeout + 1);
  Advance(4 * kTimeout - milliseconds(1));
  EXPECT_EQ(link_.reset_count, 0);
  Advance(milliseconds(1));
  EXPECT_EQ(link_.reset_count, 1);
}

TEST_F(SessionsTest, AVerifierThatAnswersOthersIsTrustedButTheForgottenSessionMoves) {
  const Request& forgotten = Open(10);
  for (int i = 0; i < kVerdictTimeoutsOfSession; ++i) {
    EXPECT_TRUE(forgotten.verification->has_session());
    GiveOpeningVerdict(Open(10));
    Advance(kTimeout - milliseconds(1));
  }
  EXPECT_THAT(link_.closed, ::testing::IsEmpty());
  GiveOpeningVerdict(Open(10));
  Advance(milliseconds(kVerdictTimeoutsOfSession));
  EXPECT_EQ(link_.reset_count, 0);
  EXPECT_THAT(link_.closed, ::testing::ElementsAre(link_.opened.front()));
  EXPECT_FALSE(forgotten.verification->has_session());
}

}  // namespace
}  // namespace selfsame::decoder
