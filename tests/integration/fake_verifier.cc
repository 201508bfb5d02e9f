#include "tests/integration/fake_verifier.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/rpc/grpc_server.h"
#include "selfsame/v1/verification.grpc.pb.h"

namespace selfsame::testing {
namespace {

constexpr int32_t kFirstToken = 5;
constexpr float kLogprob = -1.0f;

struct Session {
  int32_t prompt_length = 0;
  int32_t max_tokens = 0;
};

v1::VerifyResponse OpeningVerdict(const v1::OpenSession& opening) {
  v1::VerifyResponse response;
  v1::Verdict& verdict = *response.mutable_verdict();
  verdict.set_session_id(opening.session_id());
  verdict.set_outcome(v1::OUTCOME_COMMIT);
  verdict.set_committed_length(opening.prompt_token_ids_size() +
                               opening.committed_token_ids_size() + 1);
  verdict.set_canonical_token(kFirstToken);
  verdict.add_logprobs(kLogprob);
  return response;
}

v1::VerifyResponse CommitVerdict(const v1::SubmitWindow& window, const Session& session) {
  v1::VerifyResponse response;
  v1::Verdict& verdict = *response.mutable_verdict();
  verdict.set_session_id(window.session_id());
  verdict.set_window_id(window.window_id());
  verdict.set_outcome(v1::OUTCOME_COMMIT);
  verdict.set_epoch(window.epoch());
  verdict.set_committed_length(window.first_position() + window.candidate_ids_size());
  for (int i = 0; i < window.candidate_ids_size(); ++i) verdict.add_logprobs(kLogprob);
  if (verdict.committed_length() >= session.prompt_length + session.max_tokens) {
    verdict.set_end(v1::END_MAX_TOKENS);
  }
  return response;
}

// The opening verdict as `lie` has it, perhaps more than once.
std::vector<v1::VerifyResponse> AnswerOpening(const v1::OpenSession& opening, Lie lie) {
  v1::VerifyResponse response = OpeningVerdict(opening);
  v1::Verdict& verdict = *response.mutable_verdict();
  switch (lie) {
    case Lie::kWrongOpeningLength:
      verdict.set_committed_length(verdict.committed_length() + 1);
      break;
    case Lie::kOpeningWithoutToken:
      verdict.clear_canonical_token();
      break;
    case Lie::kOpeningTwice:
      return {response, response};
    default:
      break;
  }
  return {response};
}

void MakeRollback(const v1::SubmitWindow& window, v1::Verdict& verdict) {
  verdict.set_outcome(v1::OUTCOME_ROLLBACK);
  verdict.set_epoch(window.epoch() + 1);
  verdict.set_committed_length(window.first_position() + 1);
  verdict.set_canonical_token(kFirstToken);
  verdict.mutable_logprobs()->Resize(1, kLogprob);
  verdict.clear_end();
}

std::vector<v1::VerifyResponse> AnswerWindow(const v1::SubmitWindow& window, const Session& session,
                                             Lie lie) {
  v1::VerifyResponse response = CommitVerdict(window, session);
  v1::Verdict& verdict = *response.mutable_verdict();
  switch (lie) {
    case Lie::kUnknownSession:
      // Ahead of the honest one: a session this stream never had.
      verdict.set_session_id(window.session_id() + 1000000);
      break;
    case Lie::kUnknownWindow:
      verdict.set_window_id(window.window_id() + 7);
      break;
    case Lie::kWrongCommittedLength:
      verdict.set_committed_length(verdict.committed_length() + 5);
      break;
    case Lie::kCommittedLengthFalls:
      verdict.set_committed_length(window.first_position() - 1);
      break;
    case Lie::kWrongEpoch:
      verdict.set_epoch(window.epoch() + 3);
      break;
    case Lie::kRollbackWithoutToken:
      MakeRollback(window, verdict);
      verdict.clear_canonical_token();
      break;
    case Lie::kRollbackInSameEpoch:
      MakeRollback(window, verdict);
      verdict.set_epoch(window.epoch());
      break;
    case Lie::kTokenOutsideVocabulary:
      MakeRollback(window, verdict);
      verdict.set_canonical_token(1 << 30);
      break;
    case Lie::kTooFewLogprobs:
      verdict.mutable_logprobs()->Resize(verdict.logprobs_size() - 1, kLogprob);
      break;
    case Lie::kVerdictTwice:
      return {response, response};
    case Lie::kUnknownOutcome:
      verdict.set_outcome(static_cast<v1::Outcome>(9));
      break;
    case Lie::kUnknownEnd:
      verdict.set_end(static_cast<v1::End>(9));
      break;
    case Lie::kEmptyMessage:
      return {v1::VerifyResponse()};
    default:
      break;
  }
  return {response};
}

class Service final : public v1::Verifier::Service {
 public:
  grpc::Status GetVerifierInfo(grpc::ServerContext*, const v1::GetVerifierInfoRequest*,
                               v1::GetVerifierInfoResponse* response) override {
    response->set_fingerprint("fake");
    response->set_context_limit(context_limit);
    response->set_vocab_size(vocab_size);
    response->set_max_window_size(64);
    response->set_max_sessions(64);
    return grpc::Status::OK;
  }

  grpc::Status Verify(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::VerifyResponse, v1::VerifyRequest>* stream) override {
    ++stream_count;
    std::map<uint64_t, Session> sessions;
    v1::VerifyRequest request;
    while (stream->Read(&request)) {
      const Lie now = lie;
      if (now == Lie::kRefusesStreams) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
      std::vector<v1::VerifyResponse> answers;
      if (request.has_open_session()) {
        const v1::OpenSession& opening = request.open_session();
        sessions[opening.session_id()] = {opening.prompt_token_ids_size(),
                                          opening.stop().max_tokens()};
        answers = AnswerOpening(opening, now);
      } else if (request.has_submit_window()) {
        if (now == Lie::kClosesStream) return grpc::Status::OK;
        const v1::SubmitWindow& window = request.submit_window();
        answers = AnswerWindow(window, sessions[window.session_id()], now);
      }
      for (const v1::VerifyResponse& answer : answers) stream->Write(answer);
    }
    return grpc::Status::OK;
  }

  std::atomic<Lie> lie = Lie::kNone;
  std::atomic<int32_t> context_limit = 0;
  std::atomic<int32_t> vocab_size = 0;
  std::atomic<int> stream_count = 0;
};

}  // namespace

const char* LieName(Lie lie) {
  switch (lie) {
    case Lie::kNone:
      return "None";
    case Lie::kRefusesStreams:
      return "RefusesStreams";
    case Lie::kWrongOpeningLength:
      return "WrongOpeningLength";
    case Lie::kOpeningWithoutToken:
      return "OpeningWithoutToken";
    case Lie::kOpeningTwice:
      return "OpeningTwice";
    case Lie::kUnknownSession:
      return "UnknownSession";
    case Lie::kUnknownWindow:
      return "UnknownWindow";
    case Lie::kWrongCommittedLength:
      return "WrongCommittedLength";
    case Lie::kCommittedLengthFalls:
      return "CommittedLengthFalls";
    case Lie::kWrongEpoch:
      return "WrongEpoch";
    case Lie::kRollbackWithoutToken:
      return "RollbackWithoutToken";
    case Lie::kRollbackInSameEpoch:
      return "RollbackInSameEpoch";
    case Lie::kTokenOutsideVocabulary:
      return "TokenOutsideVocabulary";
    case Lie::kTooFewLogprobs:
      return "TooFewLogprobs";
    case Lie::kVerdictTwice:
      return "VerdictTwice";
    case Lie::kUnknownOutcome:
      return "UnknownOutcome";
    case Lie::kUnknownEnd:
      return "UnknownEnd";
    case Lie::kEmptyMessage:
      return "EmptyMessage";
    case Lie::kClosesStream:
      return "ClosesStream";
  }
  return "";
}

struct FakeVerifier::Impl {
  Service service;
  std::unique_ptr<GrpcServer> server;
};

absl::StatusOr<std::unique_ptr<FakeVerifier>> FakeVerifier::Start(int32_t context_limit,
                                                                  int32_t vocab_size) {
  auto impl = std::make_unique<Impl>();
  impl->service.context_limit = context_limit;
  impl->service.vocab_size = vocab_size;
  ASSIGN_OR_RETURN(impl->server, GrpcServer::Start("127.0.0.1:0", {&impl->service}));
  return std::unique_ptr<FakeVerifier>(new FakeVerifier(std::move(impl)));
}

FakeVerifier::FakeVerifier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

FakeVerifier::~FakeVerifier() = default;

const std::string& FakeVerifier::address() const { return impl_->server->address(); }

void FakeVerifier::Tell(Lie lie) { impl_->service.lie = lie; }

void FakeVerifier::SetContextLimit(int32_t context_limit) {
  impl_->service.context_limit = context_limit;
}

void FakeVerifier::SetVocabSize(int32_t vocab_size) { impl_->service.vocab_size = vocab_size; }

int FakeVerifier::stream_count() const { return impl_->service.stream_count; }

}  // namespace selfsame::testing
