// The client's calls, over gRPC, of a decoder that sends what it is told.

#include "decoder/client/inference_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/rpc/grpc_server.h"
#include "selfsame/v1/inference.grpc.pb.h"

namespace selfsame::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Event = v1::GenerateResponse;

// One stream: events, and how it ends.
struct Stream {
  std::vector<Event> events;
  grpc::Status end;
};

const grpc::Status kBroken(grpc::StatusCode::UNAVAILABLE, "gone");

// Answers each call with the next stream.
class FakeDecoder final : public v1::Inference::Service {
 public:
  explicit FakeDecoder(std::vector<Stream> streams) : streams_(std::move(streams)) {}

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<Event>* writer) override {
    const MutexLock lock(mutex_);
    if (requests_.empty()) first_call_ = std::chrono::steady_clock::now();
    requests_.push_back(*request);
    if (requests_.size() > streams_.size()) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "no more streams"};
    }
    const Stream& stream = streams_[requests_.size() - 1];
    for (const Event& event : stream.events) writer->Write(event);
    return stream.end;
  }

  std::vector<v1::GenerateRequest> requests() {
    const MutexLock lock(mutex_);
    return requests_;
  }
  SteadyTime first_call() {
    const MutexLock lock(mutex_);
    return first_call_;
  }

 private:
  const std::vector<Stream> streams_;
  Mutex mutex_;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
  SteadyTime first_call_ ABSL_GUARDED_BY(mutex_);
};

Event Started() {
  Event event;
  event.mutable_started()->set_prompt_tokens(2);
  return event;
}

// Tokens from `first_position` on, a letter of `text` each; 0 and 1 are the prompt.
Event Chunk(int32_t first_position, std::string_view text) {
  Event event;
  v1::Chunk& chunk = *event.mutable_chunk();
  chunk.set_first_position(first_position);
  for (const char letter : text) chunk.add_token_ids(letter);
  chunk.set_text(std::string(text));
  return event;
}

Event Candidate(int32_t first_position, std::string_view text) {
  Event event = Chunk(first_position, text);
  event.mutable_chunk()->set_is_candidate(true);
  return event;
}

Event Retract(int32_t length) {
  Event event;
  event.mutable_retract()->set_length(length);
  return event;
}

Event Complete(int32_t output_tokens, int32_t choice_index = 0) {
  Event event;
  event.mutable_complete()->set_output_tokens(output_tokens);
  event.mutable_complete()->set_choice_index(choice_index);
  return event;
}

class InferenceClientTest : public ::testing::Test {
 protected:
  // The answer of a decoder that sends these streams. text_ is what on_text got.
  absl::StatusOr<Answer> Generate(const Request& request, std::vector<Stream> streams) {
    text_.clear();
    client_.reset();
    server_.reset();
    decoder_ = std::make_unique<FakeDecoder>(std::move(streams));
    auto server = GrpcServer::Start("127.0.0.1:0", {decoder_.get()});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    auto client = Connect({.server = server_->address()});
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    return client_->Generate(request, [this](std::string_view text) { text_ += text; });
  }

  std::unique_ptr<FakeDecoder> decoder_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<InferenceApi> client_;
  std::string text_;
};

TEST_F(InferenceClientTest, ThePromptIsReportedOnceWhereverTheStreamBreaks) {
  const std::vector<Event> whole = {Started(), Chunk(0, "a"), Chunk(1, "b"), Chunk(2, "x"),
                                    Chunk(3, "y")};
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    SCOPED_TRACE(cut);
    Request request;
    request.echo = true;
    request.resume_attempts = 1;
    Stream second{whole, {}};
    // After the first output token the prompt is not asked for again.
    if (cut > 3) second.events = {Started(), Chunk(3, "y")};
    second.events.push_back(Complete(2));
    const auto answer = Generate(
        request, {{{whole.begin(), whole.begin() + static_cast<int64_t>(cut)}, kBroken}, second});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(text_, "abxy");
    EXPECT_EQ(answer->prompt_text, "ab");
    EXPECT_THAT(answer->prompt_token_ids, ElementsAre('a', 'b'));
    EXPECT_EQ(answer->text, "xy");
    EXPECT_EQ(answer->resumes, 1);
    EXPECT_LE(answer->sent, decoder_->first_call()) << "latencies hold the attempt that failed";
    EXPECT_EQ(decoder_->requests()[1].echo(), cut <= 3);
    EXPECT_EQ(decoder_->requests()[1].resume_token_ids_size(), cut > 3 ? 1 : 0);
  }
}

TEST_F(InferenceClientTest, WithoutAttemptsABrokenStreamIsUnavailable) {
  const auto answer = Generate({}, {{{Started(), Chunk(2, "x")}, kBroken}});
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable) << answer.status();
  EXPECT_EQ(text_, "x");
}

TEST_F(InferenceClientTest, AStreamThatBreaksBehindAWholeAnswerLosesNothing) {
  for (const int32_t resume_attempts : {0, 1}) {
    Request request;
    request.is_deterministic = true;
    request.resume_attempts = resume_attempts;
    const auto answer = Generate(request, {{{Started(), Chunk(2, "x"), Complete(1)}, kBroken},
                                           {{Started(), Chunk(2, "x"), Complete(1)}, {}}});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(text_, "x");
    EXPECT_EQ(decoder_->requests().size(), 1u);
  }
  const grpc::Status failed(grpc::StatusCode::INTERNAL, "failed");
  const auto answer = Generate({}, {{{Started(), Chunk(2, "x"), Complete(1)}, failed}});
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal) << "the server says so itself";
}

TEST_F(InferenceClientTest, CandidatesOfAllAttemptsAreCounted) {
  Request request;
  request.stream_candidates = true;
  request.resume_attempts = 1;
  const auto answer =
      Generate(request, {{{Started(), Candidate(2, "z"), Retract(2), Candidate(2, "x")}, kBroken},
                         {{Started(), Candidate(2, "x"), Chunk(2, "x"), Complete(1)}, {}}});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->candidates, 3);
  EXPECT_EQ(answer->retracts, 1);
  EXPECT_EQ(text_, "x");
}

TEST_F(InferenceClientTest, CandidatesThatNobodyAskedForAreInternal) {
  for (const int32_t n : {1, 2}) {
    Request request;
    request.n = n;
    for (const auto& [event, says] :
         {std::pair(Candidate(2, "x"), "a candidate, though none were asked for"),
          std::pair(Retract(2), "a Retract, though no candidates were asked for")}) {
      SCOPED_TRACE(testing::Message() << n << ' ' << says);
      // All would be well but for this one.
      const int32_t output_tokens = event.has_chunk() && n > 1 ? 1 : 0;
      Stream stream{{Started(), event}, {}};
      if (n == 1 && event.has_chunk()) stream.events.push_back(Retract(2));
      stream.events.push_back(Complete(output_tokens));
      if (n > 1) stream.events.push_back(Complete(0, 1));
      const auto answer = Generate(request, {stream});
      EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal) << answer.status();
      EXPECT_THAT(std::string(answer.status().message()), HasSubstr(says));
      EXPECT_EQ(text_, "");
    }
  }
}

}  // namespace
}  // namespace selfsame::client
