#include "decoder/client/inference_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/grpc_status.h"
#include "common/tokenizer/utf8.h"
#include "decoder/client/answer_builder.h"
#include "decoder/client/answer_stream.h"
#include "selfsame/v1/inference.grpc.pb.h"

namespace selfsame::client {
namespace {

namespace v1 = ::selfsame::v1;

struct InputWriter {
  v1::GenerateRequest& out;
  void operator()(const std::string& prompt) { out.set_prompt(prompt); }
  void operator()(const std::vector<int32_t>& ids) {
    out.mutable_prompt_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  }
  void operator()(const std::vector<ChatMessage>& messages) {
    for (const ChatMessage& message : messages) {
      v1::ChatMessage& added = *out.mutable_chat()->add_messages();
      added.set_role(message.role);
      added.set_content(message.content);
    }
  }
};

bool IsValidUtf8(std::string_view text) { return FirstInvalidUtf8(text) == std::string_view::npos; }

// A string field of a protocol buffer must be UTF-8; the server would only say that it could not
// parse the message.
absl::Status ValidateText(const Request& request) {
  if (const auto* prompt = std::get_if<std::string>(&request.input)) {
    if (!IsValidUtf8(*prompt)) return InvalidArgumentError("prompt", "is not valid UTF-8");
  } else if (const auto* chat = std::get_if<std::vector<ChatMessage>>(&request.input)) {
    for (const ChatMessage& message : *chat) {
      if (!IsValidUtf8(message.role) || !IsValidUtf8(message.content)) {
        return InvalidArgumentError("chat", "a message is not valid UTF-8");
      }
    }
  }
  for (const std::string& stop : request.stop) {
    if (!IsValidUtf8(stop)) return InvalidArgumentError("stop", "is not valid UTF-8");
  }
  if (request.expected_fingerprint && !IsValidUtf8(*request.expected_fingerprint)) {
    return InvalidArgumentError("expected_fingerprint", "is not valid UTF-8");
  }
  return absl::OkStatus();
}

v1::GenerateRequest ToProto(const Request& request) {
  v1::GenerateRequest out;
  std::visit(InputWriter{out}, request.input);
  v1::SamplingParams& sampling = *out.mutable_sampling();
  if (request.temperature) sampling.set_temperature(*request.temperature);
  if (request.top_k) sampling.set_top_k(*request.top_k);
  if (request.top_p) sampling.set_top_p(*request.top_p);
  if (request.min_p) sampling.set_min_p(*request.min_p);
  if (request.repetition_penalty) sampling.set_repetition_penalty(*request.repetition_penalty);
  if (request.presence_penalty) sampling.set_presence_penalty(*request.presence_penalty);
  if (request.frequency_penalty) sampling.set_frequency_penalty(*request.frequency_penalty);
  for (const auto& [token_id, bias] : request.logit_bias) {
    (*sampling.mutable_logit_bias())[token_id] = bias;
  }
  if (request.seed) sampling.set_seed(*request.seed);
  v1::StopConditions& stop = *out.mutable_stop();
  if (request.min_tokens) stop.set_min_tokens(*request.min_tokens);
  if (request.max_tokens) stop.set_max_tokens(*request.max_tokens);
  stop.mutable_stop()->Assign(request.stop.begin(), request.stop.end());
  stop.mutable_stop_token_ids()->Assign(request.stop_token_ids.begin(),
                                        request.stop_token_ids.end());
  stop.set_ignore_eos(request.ignore_eos);
  out.set_is_deterministic(request.is_deterministic);
  out.set_logprobs(request.logprobs);
  if (request.n != 1) out.set_n(request.n);
  out.set_top_logprobs(request.top_logprobs);
  if (request.prompt_logprobs) out.set_prompt_logprobs(*request.prompt_logprobs);
  out.set_echo(request.echo);
  out.set_stream_candidates(request.stream_candidates);
  if (request.expected_fingerprint) out.set_expected_fingerprint(*request.expected_fingerprint);
  if (request.priority) out.set_priority(*request.priority);
  return out;
}

ServerInfo FromProto(const v1::GetServerInfoResponse& response) {
  ServerInfo info;
  info.version = response.version();
  info.model = response.model();
  info.context_limit = response.context_limit();
  info.vocab_size = response.vocab_size();
  info.arithmetic = response.arithmetic();
  info.max_batch_size = response.max_batch_size();
  info.window_size = response.window_size();
  for (const v1::VerifierStatus& verifier : response.verifiers()) {
    info.verifiers.push_back(
        {verifier.address(), verifier.connected(), verifier.fingerprint(), verifier.last_error()});
  }
  info.running_requests = response.running_requests();
  info.waiting_requests = response.waiting_requests();
  return info;
}

using SystemTime = std::chrono::system_clock::time_point;

// Between a stream that broke and the next; doubles with each attempt.
constexpr std::chrono::milliseconds kResumePause{100};
constexpr int32_t kMaxResumeDoublings = 5;
// How long gRPC lets a server that does not answer rest.
constexpr int kMaxReconnectPauseMs = 500;

SystemTime InSeconds(double seconds) {
  return std::chrono::system_clock::now() +
         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

class InferenceClient : public InferenceApi {
 public:
  InferenceClient(std::shared_ptr<grpc::Channel> channel, const ConnectOptions& options)
      : channel_(std::move(channel)), stub_(v1::Inference::NewStub(channel_)), options_(options) {}

  absl::StatusOr<Answer> Generate(const Request& request, const TextCallback& on_text) override {
    RETURN_IF_ERROR(ValidateText(request));
    if (request.n > 1 && (request.stream_candidates || request.resume_attempts > 0)) {
      return InvalidArgumentError("n", "must be 1 with stream_candidates and resume_attempts");
    }
    const std::optional<SystemTime> deadline = Deadline();
    AnswerBuilder builder(request, on_text);
    AnswerStream stream(ToProto(request), request.on_candidates);
    for (int32_t attempt = 0;; ++attempt) {
      const absl::Status status = ReadStream(request, stream, builder, deadline);
      if (status.ok()) {
        ASSIGN_OR_RETURN(Answer answer, builder.Finish());
        answer.candidates = stream.candidate_count();
        answer.retracts = stream.retract_count();
        answer.resumes = attempt;
        return answer;
      }
      stream.DropCandidates();
      if (!absl::IsUnavailable(status) || attempt >= request.resume_attempts) return status;
      RETURN_IF_ERROR(Reconnect(attempt, status));
      if (!stream.has_output()) builder.Restart();
      stream.Resume();
    }
  }

  absl::StatusOr<ServerInfo> GetServerInfo() override {
    grpc::ClientContext context;
    if (const auto deadline = Deadline()) context.set_deadline(*deadline);
    v1::GetServerInfoResponse response;
    const grpc::Status status = stub_->GetServerInfo(&context, {}, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return FromProto(response);
  }

 private:
  std::optional<SystemTime> Deadline() const {
    if (options_.request_timeout_s <= 0) return std::nullopt;
    return InSeconds(options_.request_timeout_s);
  }

  // One stream from its beginning to its end.
  absl::Status ReadStream(const Request& request, AnswerStream& stream, AnswerBuilder& builder,
                          std::optional<SystemTime> deadline) {
    grpc::ClientContext context;
    if (deadline) context.set_deadline(*deadline);
    const auto reader = stub_->Generate(&context, stream.message());
    const auto collect = [&](const v1::GenerateResponse& event) { return builder.Add(event); };
    v1::GenerateResponse response;
    absl::Status broken;
    while (broken.ok() && reader->Read(&response)) {
      // Candidates and further streams are for one choice alone.
      broken = request.n > 1 ? builder.Add(response) : stream.Take(std::move(response), collect);
      response.Clear();
      if (broken.ok() && request.cancel_after_tokens &&
          builder.token_count() >= static_cast<size_t>(*request.cancel_after_tokens)) {
        broken = CancelledError("the client asked for no more tokens");
      }
    }
    if (!broken.ok()) context.TryCancel();
    const grpc::Status ended = reader->Finish();
    RETURN_IF_ERROR(broken);
    const absl::Status status = ended.ok() ? absl::OkStatus() : FromGrpcStatus(ended);
    // Where everything has come, a connection that is lost takes nothing away.
    return absl::IsUnavailable(status) && builder.is_complete() ? absl::OkStatus() : status;
  }

  // Waits for a server at the address. A pause first: one that shuts down still answers for a
  // while.
  absl::Status Reconnect(int32_t attempt, const absl::Status& why) {
    std::this_thread::sleep_for(kResumePause * (1 << std::min(attempt, kMaxResumeDoublings)));
    if (channel_->WaitForConnected(InSeconds(options_.connect_timeout_s))) return absl::OkStatus();
    return UnavailableError(absl::StrCat("the stream broke (", why.message(),
                                         ") and no server answered at ", options_.server,
                                         " within ", options_.connect_timeout_s, " s"));
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  const ConnectOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<InferenceApi>> Connect(const ConnectOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectPauseMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMaxReconnectPauseMs);
  auto channel =
      grpc::CreateCustomChannel(options.server, grpc::InsecureChannelCredentials(), arguments);
  if (!channel->WaitForConnected(InSeconds(options.connect_timeout_s))) {
    return UnavailableError(absl::StrCat("no server answered at ", options.server, " within ",
                                         options.connect_timeout_s, " s (--server)"));
  }
  return std::make_unique<InferenceClient>(std::move(channel), options);
}

}  // namespace selfsame::client
