// Candidates streamed before they are verified, and answers that go on when their stream broke.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "tests/integration/cluster.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {
namespace {

constexpr int kRequests = 12;
constexpr int kMaxTokens = 192;
constexpr int kLongAnswer = 400 / kTokenDivisor;

class StreamingTest : public ::testing::Test {
 protected:
  void Start(const std::string& model_dir) {
    auto cluster = Cluster::Start({.model_dir = model_dir,
                                   .decoder_flags = {"--max_batch_size=16"},
                                   .verifier_flags = {},
                                   .other_verifiers = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  TestClient& client() { return cluster_->client(); }

  NearTieModel near_tie_;
  std::unique_ptr<Cluster> cluster_;
};

std::vector<v1::GenerateRequest> WithCandidates(std::vector<v1::GenerateRequest> requests) {
  for (v1::GenerateRequest& request : requests) request.set_stream_candidates(true);
  return requests;
}

TEST_F(StreamingTest, WithCandidatesTheAnswerIsTheSameUnderLoad) {
  ASSERT_NO_FATAL_FAILURE(Start(near_tie_.path()));
  auto requests = MakeRequests(kRequests, kMaxTokens);
  requests[1].mutable_stop()->add_stop("e");
  const auto reference = ServeAll(client(), requests, ArrivalOrder(kRequests, 0), 1);
  int candidates = 0;
  int retracts = 0;
  for (const int concurrency : {3, 4, 12}) {
    const Background background(client(), concurrency % 4);
    const auto results =
        ServeAll(client(), WithCandidates(requests), ArrivalOrder(kRequests, 3), concurrency);
    for (int i = 0; i < kRequests; ++i) {
      SCOPED_TRACE(i);
      EXPECT_TRUE(IsSameAnswer(results[i], reference[i])) << Describe(results[i]);
      EXPECT_EQ(results[i].text, reference[i].text);
      EXPECT_EQ(results[i].violation, "");
      EXPECT_EQ(reference[i].candidate_count, 0);
      candidates += results[i].candidate_count;
      retracts += results[i].retract_count;
    }
  }
  RecordProperty("retracts", retracts);
  EXPECT_GT(candidates, kRequests * kMaxTokens / 2);
  EXPECT_GT(retracts, 0) << "nothing was ever taken back, so nothing was tested";
}

TEST_F(StreamingTest, AnAnswerGoesOnFromAnyOfItsTokens) {
  ASSERT_NO_FATAL_FAILURE(Start(TrainedModelDir()));
  auto requests = MakeVerseRequests(4, 40);
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    const GenerateResult whole = client().Generate(requests[i]);
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    for (const size_t cut : {size_t{1}, whole.token_ids.size() / 2, whole.token_ids.size() - 1}) {
      v1::GenerateRequest request = requests[i];
      request.mutable_resume_token_ids()->Assign(
          whole.token_ids.begin(), whole.token_ids.begin() + static_cast<int64_t>(cut));
      request.set_stream_candidates(i % 2 == 0);
      const GenerateResult rest = client().Generate(request);
      ASSERT_TRUE(rest.status.ok()) << rest.status;
      EXPECT_EQ(rest.violation, "");
      const auto from = static_cast<int64_t>(cut);
      EXPECT_EQ(rest.token_ids,
                std::vector<int32_t>(whole.token_ids.begin() + from, whole.token_ids.end()));
      EXPECT_EQ(rest.logprob_bits,
                std::vector<uint32_t>(whole.logprob_bits.begin() + from, whole.logprob_bits.end()));
      EXPECT_TRUE(whole.text.ends_with(rest.text));
      EXPECT_EQ(rest.complete->output_tokens(), static_cast<int>(whole.token_ids.size()));
    }
  }
}

TEST_F(StreamingTest, ResumedTokensThatCannotBeGoneOnFromAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Start(near_tie_.path()));
  v1::GenerateRequest request = MakeRequests(1, 8)[0];
  request.mutable_stop()->set_ignore_eos(false);
  request.add_resume_token_ids(NearTieModel::kEosTokenId);
  absl::Status status = client().Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(FieldOf(status), "resume_token_ids[0]");
  request.mutable_resume_token_ids()->Resize(8, 5);
  EXPECT_EQ(FieldOf(client().Generate(request).status), "resume_token_ids");
  request.mutable_resume_token_ids()->Resize(2, 5);
  request.mutable_resume_token_ids()->Set(0, 5);
  request.mutable_sampling()->set_temperature(1.0f);
  request.mutable_sampling()->clear_seed();
  status = client().Generate(request).status;
  EXPECT_EQ(FieldOf(status), "resume_token_ids");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("seed"));
}

TEST_F(StreamingTest, TheCommandGoesOnWhenTheDecoderIsKilledAndStartedAgain) {
  ASSERT_NO_FATAL_FAILURE(Start(TrainedModelDir()));
  const std::vector<std::string> flags = {"generate",
                                          absl::StrCat("--server=", cluster_->decoder_address()),
                                          "--prompt=In the beginning",
                                          "--deterministic",
                                          "--temperature=0.9",
                                          "--seed=11",
                                          "--ignore_eos",
                                          "--logprobs",
                                          "--json",
                                          "--connect_timeout_s=60",
                                          "--resume_attempts=5",
                                          absl::StrCat("--max_tokens=", kLongAnswer)};
  const auto read_all = [](ChildProcess& process) {
    std::string output;
    for (auto line = process.ReadLine(); line.ok(); line = process.ReadLine()) output += *line;
    EXPECT_EQ(process.Wait(), 0) << process.stderr_text();
    return nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  };
  auto alone = ChildProcess::Start("selfsame", flags);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const nlohmann::json whole = read_all(**alone);
  ASSERT_EQ(whole["token_ids"].size(), static_cast<size_t>(kLongAnswer));

  auto broken = ChildProcess::Start("selfsame", flags);
  ASSERT_TRUE(broken.ok()) << broken.status();
  ASSERT_TRUE(client().WaitUntilBusy());
  // When a request that came later is through, the command has some of its tokens.
  ASSERT_TRUE(client().Generate(MakeVerseRequests(1, 20)[0]).status.ok());
  cluster_->KillDecoder();
  const absl::Status restarted = cluster_->RestartDecoder();
  ASSERT_TRUE(restarted.ok()) << restarted;
  const nlohmann::json resumed = read_all(**broken);
  EXPECT_EQ(resumed["resumes"], 1);
  for (const char* key :
       {"token_ids", "logprobs", "text", "finish_reason", "seed", "fingerprint"}) {
    EXPECT_EQ(resumed[key], whole[key]) << key;
  }
}

}  // namespace
}  // namespace selfsame::testing
