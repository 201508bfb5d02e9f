// Candidates shown before they are verified: what a client has at the end is the canonical answer,
// and on the way nothing is shown that could not be.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/tokenizer/utf8.h"
#include "tests/unit/decoder/core_fixture.h"
#include "tests/unit/decoder/engine_testing.h"
#include "tests/unit/decoder/recording_sink.h"

namespace selfsame::decoder {
namespace {

class CandidateStreamTest : public CoreTest {
 protected:
  static GenerationRequest ShownRequest(int index, int32_t max_tokens) {
    GenerationRequest request = TestRequest(index, max_tokens);
    request.stream_candidates = true;
    return request;
  }

  // Runs the requests side by side and compares each with its canonical answer.
  void RunAndCompareShown(const std::vector<GenerationRequest>& requests) {
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    sinks.reserve(requests.size());
    for (const GenerationRequest& request : requests) sinks.push_back(Submit(request));
    RunAll(sinks);
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectCanonical(*sinks[i], requests[i]);
      EXPECT_EQ(sinks[i]->shown_text(), sinks[i]->text);
      candidates_ += sinks[i]->candidate_count;
      retracts_ += sinks[i]->retract_count;
      AddUp(*sinks[i]);
    }
    ExpectNothingLeft();
  }

  static std::vector<GenerationRequest> Requests(int count, int32_t max_tokens) {
    std::vector<GenerationRequest> requests;
    requests.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) requests.push_back(ShownRequest(i, max_tokens));
    return requests;
  }

  int candidates_ = 0;
  int retracts_ = 0;
};

TEST_F(CandidateStreamTest, TheAnswerIsTheCanonicalOneAndCandidatesWereRetracted) {
  for (const int32_t window_size : {1, 7, 64}) {
    SCOPED_TRACE(window_size);
    Create({.window_size = window_size});
    RunAndCompareShown(Requests(12, 60));
  }
  EXPECT_GT(candidates_, 1000);
  EXPECT_GT(retracts_, 0);
  EXPECT_EQ(retracts_, rollbacks_);
}

TEST_F(CandidateStreamTest, TheAnswerDoesNotDependOnWhereWindowsAreCut) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Create({.window_size = 32,
            .seed = seed,
            .policy = std::make_unique<RandomWindowPolicy>(seed, 32)});
    RunAndCompareShown(Requests(8, 50));
  }
  EXPECT_GT(retracts_, 0);
}

TEST_F(CandidateStreamTest, ItSurvivesPreemption) {
  Create({.kv_block_count = BlocksFor(kTestContextLimit) + 2});
  RunAndCompareShown(Requests(10, 90));
  EXPECT_GT(core_->stats().preemptions, 0);
  EXPECT_GT(retracts_, 0);
}

TEST_F(CandidateStreamTest, AStopStringInACandidateEndsNothingAndIsNeverShown) {
  int stopped = 0;
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(i);
    GenerationRequest request = ShownRequest(i, 60);
    const std::string text = TinyWorld::Get().Answer(request).text;
    const size_t middle = text.find_first_of("abcdefghijklmnopqrstuvwxyz", text.size() / 2);
    if (middle == std::string::npos || middle + 1 >= text.size() || text[middle + 1] <= 0) continue;
    request.stop_strings = {text.substr(middle, 2)};
    Create({.window_size = 16});
    auto sink = Submit(request);
    RunUntil([&] {
      const std::string shown = sink->shown_text();
      EXPECT_EQ(shown.find(request.stop_strings[0]), std::string::npos);
      EXPECT_EQ(FirstInvalidUtf8(shown), std::string::npos) << "half a character";
      return sink->is_done();
    });
    ExpectCanonical(*sink, request);
    EXPECT_EQ(sink->shown_text(), sink->text);
    stopped += sink->complete->stop_string ? 1 : 0;
  }
  EXPECT_GT(stopped, 0);
}

TEST_F(CandidateStreamTest, CandidatesComeWithoutAnyVerdict) {
  Create({.window_size = 8});
  auto sink = Submit(ShownRequest(1, 100));
  for (int i = 0; i < 50; ++i) StepCore();
  EXPECT_GE(sink->candidates.size(), 8u);
  EXPECT_TRUE(sink->chunks.empty()) << "committed by nobody";
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 100));
}

TEST_F(CandidateStreamTest, CandidatesOutliveTheLossOfTheVerifier) {
  Create({.window_size = 8, .fingerprints = {"F", "F"}});
  auto sink = Submit(ShownRequest(1, 100));
  RunUntil([&] { return sink->token_ids.size() >= 10 && !sink->candidates.empty(); });
  const std::string shown = sink->shown_text();
  const int retracts = sink->retract_count;
  verifiers_[0]->Disconnect();
  EXPECT_EQ(sink->shown_text(), shown);
  EXPECT_EQ(sink->retract_count, retracts);
  RunAll({sink});
  ExpectCanonical(*sink, TestRequest(1, 100));
}

TEST_F(CandidateStreamTest, NobodyGetsCandidatesUnasked) {
  Create({});
  auto sink = Submit(TestRequest(1, 60));
  auto shown = Submit(ShownRequest(1, 60));
  RunAll({sink, shown});
  EXPECT_EQ(sink->candidate_count, 0);
  EXPECT_EQ(sink->retract_count, 0);
  EXPECT_GT(shown->candidate_count, 0);
  EXPECT_EQ(sink->token_ids, shown->token_ids);
  EXPECT_EQ(sink->text, shown->text);
}

}  // namespace
}  // namespace selfsame::decoder
