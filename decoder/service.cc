#include "decoder/service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/mutex.h"
#include "common/rpc/grpc_status.h"
#include "decoder/response_queue.h"

namespace selfsame::decoder {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message) {
  grpc::ByteBuffer buffer;
  bool owns_buffer = false;
  const grpc::Status status =
      grpc::SerializationTraits<Message>::Serialize(message, &buffer, &owns_buffer);
  SELFSAME_CHECK(status.ok());
  return buffer;
}

absl::Status Parse(const grpc::ByteBuffer& buffer, google::protobuf::Message& message) {
  grpc::Slice bytes;
  if (!buffer.DumpToSingleSlice(&bytes).ok()) return InternalError("cannot read the request");
  if (message.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return DescribeParseFailure(
      *message.GetDescriptor(),
      std::string_view(reinterpret_cast<const char*>(bytes.begin()), bytes.size()));
}

std::optional<SteadyTime> DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             deadline - std::chrono::system_clock::now());
}

size_t TextBytes(const v1::ChatMessages& chat) {
  size_t size_bytes = 0;
  for (const v1::ChatMessage& message : chat.messages()) size_bytes += message.content().size();
  return size_bytes;
}

// What will be tokenised.
size_t TextBytes(const v1::GenerateRequest& request) {
  return request.has_chat() ? TextBytes(request.chat()) : request.prompt().size();
}

size_t TextBytes(const v1::TokenizeRequest& request) {
  return request.has_chat() ? TextBytes(request.chat()) : request.text().size();
}

// One Generate call. The engine and gRPC hold it together: it lives until the call is over and the
// engine has let go of it.
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public GenerationSink,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  explicit GenerateCall(Engine& engine) : engine_(engine), queue_(kMaxUnsentResponseBytes) {}

  // What gRPC holds, until OnDone. Called once, before anything else.
  void Hold() { self_ = shared_from_this(); }

  // Hands the request to the engine, or ends the call with the error.
  void Start(absl::StatusOr<GenerationRequest> request) {
    if (!request.ok()) {
      OnError(request.status());
      return;
    }
    started_ = ToProto(*request);
    seed_ = request->seed;
    const absl::StatusOr<uint64_t> id = engine_.Submit(*std::move(request), shared_from_this());
    if (!id.ok()) {
      OnError(id.status());
      return;
    }
    bool is_unwanted = false;
    {
      MutexLock lock(mutex_);
      engine_id_ = *id;
      is_unwanted = is_unwanted_;
    }
    // The client may have gone while the prompt was tokenised.
    if (is_unwanted) engine_.Cancel(*id);
  }

  // The client is gone, or the call has failed.
  bool HasEnded() {
    MutexLock lock(mutex_);
    return end_.has_value();
  }

  // Events of the engine.
  void OnStarted(const StartedEvent& event) override {
    v1::GenerateResponse response;
    *response.mutable_started() = started_;
    response.mutable_started()->set_fingerprint(event.fingerprint);
    Send(std::move(response));
  }

  void OnChunk(ChunkEvent event) override {
    v1::GenerateResponse response;
    *response.mutable_chunk() = ToProto(event);
    Send(std::move(response));
  }

  void OnRetract(const RetractEvent& event) override {
    v1::GenerateResponse response;
    *response.mutable_retract() = ToProto(event);
    Send(std::move(response));
  }

  void OnComplete(const CompleteEvent& event) override {
    v1::GenerateResponse response;
    *response.mutable_complete() = ToProto(event, seed_);
    Send(std::move(response));
    End(absl::OkStatus());
  }

  void OnError(const absl::Status& status) override { End(status); }

  // Reactions of gRPC.
  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      is_writing_ = false;
      if (!ok) {
        // The client is gone; OnCancel tells the engine.
        queue_.Clear();
        if (!end_.has_value()) end_ = CancelledError("the client is gone");
      }
    }
    Advance();
  }

  void OnCancel() override {
    End(CancelledError("the client is gone"));
    CancelInEngine();
  }

  void OnDone() override {
    // The last reference may be this one.
    const std::shared_ptr<GenerateCall> self = std::move(self_);
  }

 private:
  void Send(v1::GenerateResponse response) {
    {
      MutexLock lock(mutex_);
      if (end_.has_value()) return;
      if (!queue_.Push(std::move(response))) {
        queue_.Clear();
        end_ = ResourceExhaustedError(
            absl::StrCat("the client reads too slowly: more than ", kMaxUnsentResponseBytes,
                         " bytes of its answer wait"),
            kSlowClientRetryMs);
        // A sink must not call the engine; another thread does.
        overflow_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [weak = weak_from_this()](bool) {
          if (const auto self = weak.lock()) self->CancelInEngine();
        });
      }
    }
    Advance();
  }

  void End(const absl::Status& status) {
    {
      MutexLock lock(mutex_);
      if (!end_.has_value()) end_ = status;
    }
    Advance();
  }

  void CancelInEngine() {
    std::optional<uint64_t> id;
    {
      MutexLock lock(mutex_);
      is_unwanted_ = true;
      id = engine_id_;
    }
    if (id.has_value()) engine_.Cancel(*id);
  }

  // Starts whatever is next, if nothing is in progress: a write, the status, or both at once. The
  // thread that sets is_writing_ or is_finished_ is the one that may touch outgoing_.
  void Advance() {
    bool has_message = false;
    std::optional<grpc::Status> status;
    {
      MutexLock lock(mutex_);
      if (is_writing_ || is_finished_) return;
      if (!queue_.empty()) {
        outgoing_ = Serialize(queue_.Pop());
        has_message = true;
        is_writing_ = true;
      }
      if (queue_.empty() && end_.has_value()) {
        status = ToGrpcStatus(*end_);
        is_finished_ = true;
      }
    }
    if (has_message && status.has_value()) {
      StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), *std::move(status));
    } else if (has_message) {
      StartWrite(&outgoing_);
    } else if (status.has_value()) {
      Finish(*std::move(status));
    }
  }

  Engine& engine_;
  std::shared_ptr<GenerateCall> self_;  // gRPC's reference, until OnDone
  v1::Started started_;
  uint64_t seed_ = 0;
  grpc::ByteBuffer outgoing_;
  grpc::Alarm overflow_;

  Mutex mutex_;
  ResponseQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> engine_id_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // set: no more events count
  bool is_unwanted_ ABSL_GUARDED_BY(mutex_) = false;         // nobody waits for events
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

InferenceService::InferenceService(ServiceOptions options, ServiceDependencies dependencies)
    : options_(std::move(options)),
      dependencies_(std::move(dependencies)),
      encoder_(dependencies_.tokenizer),
      long_texts_(kMaxWaitingLongTexts) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  const auto call = std::make_shared<GenerateCall>(dependencies_.engine);
  call->Hold();
  ReceivedGeneration received;
  absl::Status status = ReceiveGeneration(*context, *bytes, received);
  const bool is_deterministic = received.request.is_deterministic();
  if (status.ok()) {
    const size_t text_bytes = TextBytes(received.request);
    status = RunEncoding(text_bytes, [this, call, received = std::move(received)] {
      absl::StatusOr<GenerationRequest> request = CancelledError("the client is gone");
      if (!call->HasEnded()) request = PrepareGeneration(received);
      if (!request.ok()) CountRefusal(received.request.is_deterministic(), request.status());
      call->Start(std::move(request));
    });
  }
  if (!status.ok()) {
    CountRefusal(is_deterministic, status);
    call->OnError(status);
  }
  // Not over before gRPC has seen this pointer: until then the call keeps itself alive.
  return call.get();
}

void InferenceService::CountRefusal(bool is_deterministic, const absl::Status& status) const {
  if (dependencies_.on_refused) dependencies_.on_refused(is_deterministic, status.code());
}

absl::Status InferenceService::ReceiveGeneration(grpc::CallbackServerContext& context,
                                                 const grpc::ByteBuffer& bytes,
                                                 ReceivedGeneration& received) const {
  ASSIGN_OR_RETURN(received.request_id, ResolveRequestId(context));
  RETURN_IF_ERROR(Parse(bytes, received.request));
  RETURN_IF_ERROR(ValidateGenerate(received.request, options_.limits));
  received.deadline = DeadlineOf(context);
  return absl::OkStatus();
}

absl::StatusOr<GenerationRequest> InferenceService::PrepareGeneration(
    const ReceivedGeneration& received) const {
  const v1::GenerateRequest& request = received.request;
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, encoder_.Encode(request));
  RETURN_IF_ERROR(ValidateLengths(static_cast<int64_t>(prompt.size()), request, options_.limits));
  GenerationRequest result =
      ToGenerationRequest(request, std::move(prompt), options_.defaults,
                          options_.limits.context_limit, dependencies_.random());
  RETURN_IF_ERROR(ValidateResume(request, result.temperature, result.max_tokens));
  result.request_id = received.request_id;
  result.deadline = received.deadline;
  return result;
}

absl::Status InferenceService::RunEncoding(size_t text_bytes, std::function<void()> encode) {
  if (text_bytes <= kLongTextBytes) {
    encode();
    return absl::OkStatus();
  }
  if (long_texts_.Post(std::move(encode))) return absl::OkStatus();
  return ResourceExhaustedError(
      absl::StrCat("more than ", kMaxWaitingLongTexts, " texts of more than ", kLongTextBytes,
                   " bytes wait to be tokenised"),
      kLongTextRetryMs);
}

absl::StatusOr<std::string> InferenceService::ResolveRequestId(
    grpc::CallbackServerContext& context) const {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(kRequestIdKey);
  std::string request_id;
  if (it != metadata.end()) {
    request_id.assign(it->second.data(), it->second.size());
    RETURN_IF_ERROR(ValidateRequestId(request_id));
  } else {
    request_id = absl::StrCat(absl::Hex(dependencies_.random(), absl::kZeroPad16),
                              absl::Hex(dependencies_.random(), absl::kZeroPad16));
  }
  context.AddInitialMetadata(kRequestIdKey, request_id);
  return request_id;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::TokenizeRequest request;
  const auto receive = [&]() -> absl::Status {
    RETURN_IF_ERROR(ResolveRequestId(*context).status());
    RETURN_IF_ERROR(Parse(*bytes, request));
    return ValidateTokenize(request);
  };
  absl::Status status = receive();
  if (status.ok()) {
    const size_t text_bytes = TextBytes(request);
    status =
        RunEncoding(text_bytes, [this, context, reactor, response, request = std::move(request)] {
          if (context->IsCancelled()) {
            reactor->Finish(grpc::Status::CANCELLED);
            return;
          }
          const absl::StatusOr<std::vector<int32_t>> ids = encoder_.Encode(request);
          if (ids.ok()) {
            v1::TokenizeResponse result;
            result.mutable_token_ids()->Add(ids->begin(), ids->end());
            *response = Serialize(result);
          }
          reactor->Finish(ToGrpcStatus(ids.status()));
        });
  }
  if (!status.ok()) reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const auto handle = [&]() -> absl::Status {
    RETURN_IF_ERROR(ResolveRequestId(*context).status());
    RETURN_IF_ERROR(ValidateDetokenize(*request, options_.limits));
    const std::vector<int32_t> ids(request->token_ids().begin(), request->token_ids().end());
    ASSIGN_OR_RETURN(*response->mutable_text(),
                     dependencies_.tokenizer.Decode(ids, /*skip_special_tokens=*/false));
    return absl::OkStatus();
  };
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(handle()));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetServerInfo(grpc::CallbackServerContext* context,
                                                          const v1::GetServerInfoRequest*,
                                                          v1::GetServerInfoResponse* response) {
  response->set_version(options_.version);
  response->set_model(options_.model);
  response->set_context_limit(options_.limits.context_limit);
  response->set_vocab_size(options_.limits.vocab_size);
  response->set_arithmetic(options_.arithmetic);
  response->set_max_batch_size(options_.max_batch_size);
  response->set_window_size(options_.window_size);
  for (const VerifierState& state : dependencies_.verifier_states()) {
    v1::VerifierStatus& status = *response->add_verifiers();
    status.set_address(state.address);
    status.set_connected(state.is_connected);
    status.set_fingerprint(state.fingerprint);
    status.set_last_error(state.last_error);
  }
  const EngineStats stats = dependencies_.engine.stats();
  response->set_running_requests(stats.running_requests);
  response->set_waiting_requests(stats.waiting_requests);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace selfsame::decoder
