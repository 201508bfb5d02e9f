#include "decoder/client/inference_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/logprobs.h"
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
  if (request.n != 1) out.set_n(request.n);
  out.set_top_logprobs(request.top_logprobs);
  if (request.prompt_logprobs) out.set_prompt_logprobs(*request.prompt_logprobs);
  out.set_echo(request.echo);
  out.set_stream_candidates(request.stream_candidates);
  if (request.expected_fingerprint) out.set_expected_fingerprint(*request.expected_fingerprint);
  if (request.priority) out.set_priority(*request.priority);
  return out;
}

// Builds an Answer from the events of one stream and holds the server to the protocol.
class AnswerBuilder {
 public:
  AnswerBuilder(const Request& request, const TextCallback& on_text)
      : request_(request),
        on_text_(on_text),
        choices_(static_cast<size_t>(std::clamp(request.n, 1, kMaxChoices))),
        is_complete_(choices_.size()) {
    for (Answer& choice : choices_) choice.sent = std::chrono::steady_clock::now();
  }

  absl::Status Add(const v1::GenerateResponse& response) {
    switch (response.event_case()) {
      case v1::GenerateResponse::kStarted:
        return AddStarted(response.started());
      case v1::GenerateResponse::kChunk:
        return AddChunk(response.chunk());
      case v1::GenerateResponse::kComplete:
        return AddComplete(response.complete());
      case v1::GenerateResponse::kPromptLogprobs:
        return AddPromptLogprobs(response.prompt_logprobs());
      case v1::GenerateResponse::kRetract:
        return InternalError("the server sent a Retract, though no candidates were asked for");
      case v1::GenerateResponse::EVENT_NOT_SET:
        break;
    }
    return InternalError("the server sent an event this client does not know");
  }

  size_t token_count() const { return choices_.front().token_ids.size(); }

  absl::StatusOr<Answer> Finish() {
    if (std::find(is_complete_.begin(), is_complete_.end(), false) != is_complete_.end()) {
      return InternalError("the server ended the stream without a Complete event");
    }
    Answer& first = choices_.front();
    const auto prompt_tokens = static_cast<size_t>(first.prompt_tokens);
    if (request_.echo && first.prompt_token_ids.size() != prompt_tokens) {
      return InternalError("the server did not send the whole prompt");
    }
    if (request_.prompt_logprobs && first.prompt_logprobs.size() + 1 != prompt_tokens) {
      return InternalError("the server did not send the logprobs of the whole prompt");
    }
    first.other_choices.assign(std::make_move_iterator(choices_.begin() + 1),
                               std::make_move_iterator(choices_.end()));
    return std::move(first);
  }

 private:
  absl::Status AddStarted(const v1::Started& started) {
    if (started_) return InternalError("the server sent Started twice");
    started_ = true;
    for (Answer& choice : choices_) {
      choice.request_id = started.request_id();
      choice.temperature = started.params().temperature();
      choice.top_k = started.params().top_k();
      choice.top_p = started.params().top_p();
      choice.min_p = started.params().min_p();
      choice.repetition_penalty = started.params().repetition_penalty();
      choice.presence_penalty = started.params().presence_penalty();
      choice.frequency_penalty = started.params().frequency_penalty();
      choice.min_tokens = started.params().min_tokens();
      choice.seed = started.params().seed();
      choice.max_tokens = started.params().max_tokens();
      choice.prompt_tokens = started.prompt_tokens();
      choice.fingerprint = started.fingerprint();
      choice.first_token = choice.last_token = choice.sent;
    }
    return absl::OkStatus();
  }

  // The choice an event is of. Null when it may not have any now.
  Answer* Find(int32_t choice_index) {
    const auto index = static_cast<size_t>(choice_index);
    if (!started_ || index >= choices_.size() || is_complete_[index]) return nullptr;
    return &choices_[index];
  }

  absl::Status AddPromptLogprobs(const v1::PromptLogprobs& piece) {
    Answer* const choice = Find(0);
    if (choice == nullptr || !request_.prompt_logprobs) {
      return InternalError("the server sent PromptLogprobs out of turn");
    }
    ASSIGN_OR_RETURN(const auto entries, ::selfsame::FromProto(piece));
    if (piece.first_position() != static_cast<int64_t>(choice->prompt_logprobs.size()) + 1) {
      return InternalError("the server left a gap in the logprobs of the prompt");
    }
    choice->prompt_logprobs.insert(choice->prompt_logprobs.end(), entries.begin(), entries.end());
    return absl::OkStatus();
  }

  absl::Status AddEcho(const v1::Chunk& chunk, Answer& choice) {
    if (chunk.first_position() != static_cast<int64_t>(choice.prompt_token_ids.size()) ||
        chunk.first_position() + chunk.token_ids_size() > choice.prompt_tokens) {
      return InternalError("the server sent the prompt with a gap, or tokens behind it");
    }
    choice.prompt_token_ids.insert(choice.prompt_token_ids.end(), chunk.token_ids().begin(),
                                   chunk.token_ids().end());
    choice.prompt_text += chunk.text();
    if (on_text_ && !chunk.text().empty()) on_text_(chunk.text());
    return absl::OkStatus();
  }

  absl::Status AddChunk(const v1::Chunk& chunk) {
    Answer* const found = Find(chunk.choice_index());
    if (found == nullptr) return InternalError("the server sent a Chunk out of turn");
    Answer& choice = *found;
    if (request_.echo && chunk.choice_index() == 0 &&
        chunk.first_position() < choice.prompt_tokens) {
      return AddEcho(chunk, choice);
    }
    const int64_t expected_position =
        choice.prompt_tokens + static_cast<int64_t>(choice.token_ids.size());
    if (chunk.token_ids_size() > 0 && chunk.first_position() != expected_position) {
      return InternalError(absl::StrCat("the server sent a chunk at position ",
                                        chunk.first_position(), " instead of ", expected_position));
    }
    if (request_.logprobs && chunk.logprobs_size() != chunk.token_ids_size()) {
      return InternalError(absl::StrCat("the server sent ", chunk.logprobs_size(),
                                        " logprobs with ", chunk.token_ids_size(), " tokens"));
    }
    if (request_.top_logprobs > 0 && chunk.top_logprobs_size() != chunk.token_ids_size()) {
      return InternalError(absl::StrCat("the server sent ", chunk.top_logprobs_size(),
                                        " top_logprobs with ", chunk.token_ids_size(), " tokens"));
    }
    if (chunk.token_ids_size() > 0) {
      choice.last_token = std::chrono::steady_clock::now();
      if (choice.token_ids.empty()) choice.first_token = choice.last_token;
    }
    choice.token_ids.insert(choice.token_ids.end(), chunk.token_ids().begin(),
                            chunk.token_ids().end());
    choice.logprobs.insert(choice.logprobs.end(), chunk.logprobs().begin(), chunk.logprobs().end());
    for (const v1::TopLogprobs& top : chunk.top_logprobs()) {
      ASSIGN_OR_RETURN(choice.top_logprobs.emplace_back(), ::selfsame::FromProto(top));
    }
    choice.text += chunk.text();
    if (on_text_ && chunk.choice_index() == 0 && !chunk.text().empty()) on_text_(chunk.text());
    return absl::OkStatus();
  }

  absl::Status AddComplete(const v1::Complete& complete) {
    Answer* const found = Find(complete.choice_index());
    if (found == nullptr) return InternalError("the server sent Complete out of turn");
    Answer& choice = *found;
    is_complete_[static_cast<size_t>(complete.choice_index())] = true;
    if (static_cast<size_t>(complete.output_tokens()) != choice.token_ids.size()) {
      return InternalError(absl::StrCat("the server counted ", complete.output_tokens(),
                                        " output tokens but sent ", choice.token_ids.size()));
    }
    if (complete.fingerprint() != choice.fingerprint) {
      return InternalError("the fingerprint changed between the first and the last event");
    }
    choice.finish_reason = complete.finish_reason() == v1::FINISH_REASON_STOP
                               ? FinishReason::kStop
                               : FinishReason::kLength;
    if (complete.matched_stop_case() == v1::Complete::kStopString) {
      choice.stop_string = complete.stop_string();
    } else if (complete.matched_stop_case() == v1::Complete::kStopTokenId) {
      choice.stop_token_id = complete.stop_token_id();
    }
    choice.windows = complete.windows();
    choice.rollbacks = complete.rollbacks();
    choice.rolled_back_tokens = complete.rolled_back_tokens();
    choice.redecoded_tokens = complete.redecoded_tokens();
    choice.cached_prompt_tokens = complete.cached_prompt_tokens();
    choice.verifier_cached_prompt_tokens = complete.verifier_cached_prompt_tokens();
    return absl::OkStatus();
  }

  const Request& request_;
  const TextCallback& on_text_;
  bool started_ = false;
  std::vector<Answer> choices_;    // [n]
  std::vector<bool> is_complete_;  // [n]
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
    if (request.n > 1 && (request.stream_candidates || request.resume_attempts > 0)) {
      return InvalidArgumentError("n", "must be 1 with stream_candidates and resume_attempts");
    }
    const std::optional<SystemTime> deadline = Deadline();
    std::optional<AnswerBuilder> builder(std::in_place, request, on_text);
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
        builder.emplace(request, on_text);
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
      // Candidates and further streams are for one choice alone.
      broken = request.n > 1 ? builder.Add(response) : stream.Take(std::move(response), collect);
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
