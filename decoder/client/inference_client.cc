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
  out.set_stream_candidates(request.stream_candidates);
  if (request.expected_fingerprint) out.set_expected_fingerprint(*request.expected_fingerprint);
  if (request.priority) out.set_priority(*request.priority);
  return out;
}

// Builds an Answer from the events of one stream and holds the server to the protocol.
class AnswerBuilder {
 public:
  AnswerBuilder(bool logprobs, const TextCallback& on_text)
      : logprobs_(logprobs), on_text_(on_text) {
    answer_.sent = std::chrono::steady_clock::now();
  }

  absl::Status Add(const v1::GenerateResponse& response) {
    switch (response.event_case()) {
      case v1::GenerateResponse::kStarted:
        return AddStarted(response.started());
      case v1::GenerateResponse::kChunk:
        return AddChunk(response.chunk());
      case v1::GenerateResponse::kComplete:
        return AddComplete(response.complete());
      case v1::GenerateResponse::kRetract:  // AnswerStream's
      case v1::GenerateResponse::EVENT_NOT_SET:
        break;
    }
    return InternalError("the server sent an event this client does not know");
  }

  size_t token_count() const { return answer_.token_ids.size(); }

  absl::StatusOr<Answer> Finish() {
    if (!completed_) return InternalError("the server ended the stream without a Complete event");
    return std::move(answer_);
  }

 private:
  absl::Status AddStarted(const v1::Started& started) {
    if (started_) return InternalError("the server sent Started twice");
    started_ = true;
    answer_.request_id = started.request_id();
    answer_.temperature = started.params().temperature();
    answer_.top_k = started.params().top_k();
    answer_.top_p = started.params().top_p();
    answer_.min_p = started.params().min_p();
    answer_.repetition_penalty = started.params().repetition_penalty();
    answer_.presence_penalty = started.params().presence_penalty();
    answer_.frequency_penalty = started.params().frequency_penalty();
    answer_.min_tokens = started.params().min_tokens();
    answer_.seed = started.params().seed();
    answer_.max_tokens = started.params().max_tokens();
    answer_.prompt_tokens = started.prompt_tokens();
    answer_.fingerprint = started.fingerprint();
    answer_.first_token = answer_.last_token = answer_.sent;
    return absl::OkStatus();
  }

  absl::Status AddChunk(const v1::Chunk& chunk) {
    if (!started_ || completed_) return InternalError("the server sent a Chunk out of turn");
    const int64_t expected_position =
        answer_.prompt_tokens + static_cast<int64_t>(answer_.token_ids.size());
    if (chunk.token_ids_size() > 0 && chunk.first_position() != expected_position) {
      return InternalError(absl::StrCat("the server sent a chunk at position ",
                                        chunk.first_position(), " instead of ", expected_position));
    }
    if (logprobs_ && chunk.logprobs_size() != chunk.token_ids_size()) {
      return InternalError(absl::StrCat("the server sent ", chunk.logprobs_size(),
                                        " logprobs with ", chunk.token_ids_size(), " tokens"));
    }
    if (chunk.token_ids_size() > 0) {
      answer_.last_token = std::chrono::steady_clock::now();
      if (answer_.token_ids.empty()) answer_.first_token = answer_.last_token;
    }
    answer_.token_ids.insert(answer_.token_ids.end(), chunk.token_ids().begin(),
                             chunk.token_ids().end());
    answer_.logprobs.insert(answer_.logprobs.end(), chunk.logprobs().begin(),
                            chunk.logprobs().end());
    answer_.text += chunk.text();
    if (on_text_ && !chunk.text().empty()) on_text_(chunk.text());
    return absl::OkStatus();
  }

  absl::Status AddComplete(const v1::Complete& complete) {
    if (!started_ || completed_) return InternalError("the server sent Complete out of turn");
    completed_ = true;
    if (static_cast<size_t>(complete.output_tokens()) != answer_.token_ids.size()) {
      return InternalError(absl::StrCat("the server counted ", complete.output_tokens(),
                                        " output tokens but sent ", answer_.token_ids.size()));
    }
    if (complete.fingerprint() != answer_.fingerprint) {
      return InternalError("the fingerprint changed between the first and the last event");
    }
    answer_.finish_reason = complete.finish_reason() == v1::FINISH_REASON_STOP
                                ? FinishReason::kStop
                                : FinishReason::kLength;
    if (complete.matched_stop_case() == v1::Complete::kStopString) {
      answer_.stop_string = complete.stop_string();
    } else if (complete.matched_stop_case() == v1::Complete::kStopTokenId) {
      answer_.stop_token_id = complete.stop_token_id();
    }
    answer_.windows = complete.windows();
    answer_.rollbacks = complete.rollbacks();
    answer_.rolled_back_tokens = complete.rolled_back_tokens();
    answer_.redecoded_tokens = complete.redecoded_tokens();
    answer_.cached_prompt_tokens = complete.cached_prompt_tokens();
    answer_.verifier_cached_prompt_tokens = complete.verifier_cached_prompt_tokens();
    return absl::OkStatus();
  }

  const bool logprobs_;
  const TextCallback& on_text_;
  bool started_ = false;
  bool completed_ = false;
  Answer answer_;
};

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
    const std::optional<SystemTime> deadline = Deadline();
    std::optional<AnswerBuilder> builder(std::in_place, request.logprobs, on_text);
    std::optional<AnswerStream> stream(std::in_place, ToProto(request), request.on_candidates);
    for (int32_t attempt = 0;; ++attempt) {
      const absl::Status status = ReadStream(request, *stream, *builder, deadline);
      if (status.ok()) {
        ASSIGN_OR_RETURN(Answer answer, builder->Finish());
        answer.candidates = stream->candidate_count();
        answer.retracts = stream->retract_count();
        answer.resumes = attempt;
        return answer;
      }
      stream->DropCandidates();
      if (!absl::IsUnavailable(status) || attempt >= request.resume_attempts) return status;
      RETURN_IF_ERROR(Reconnect(attempt, status));
      if (stream->has_output()) {
        stream->Resume();
      } else {
        builder.emplace(request.logprobs, on_text);
        stream.emplace(ToProto(request), request.on_candidates);
      }
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
      broken = stream.Take(std::move(response), collect);
      response.Clear();
      if (broken.ok() && request.cancel_after_tokens &&
          builder.token_count() >= static_cast<size_t>(*request.cancel_after_tokens)) {
        broken = CancelledError("the client asked for no more tokens");
      }
    }
    if (!broken.ok()) context.TryCancel();
    const grpc::Status status = reader->Finish();
    RETURN_IF_ERROR(broken);
    return status.ok() ? absl::OkStatus() : FromGrpcStatus(status);
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
