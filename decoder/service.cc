#include "decoder/service.h"

#include <grpcpp/support/slice.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/rpc/grpc_status.h"
#include "common/tokenizer/streaming_decoder.h"
#include "decoder/byte_buffer.h"
#include "decoder/generate_call.h"

namespace selfsame::decoder {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";

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

// The prompt as the client gets it back: its tokens, and their text with special tokens written
// out.
std::vector<v1::GenerateResponse> MakeEcho(const Tokenizer& tokenizer,
                                           const std::vector<int32_t>& prompt) {
  std::vector<v1::GenerateResponse> pieces;
  StreamingDecoder decoder(&tokenizer, /*skip_special_tokens=*/false);
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i % kMaxPromptPieceTokens == 0) {
      pieces.emplace_back().mutable_chunk()->set_first_position(static_cast<int32_t>(i));
    }
    v1::Chunk& chunk = *pieces.back().mutable_chunk();
    chunk.add_token_ids(prompt[i]);
    // A model may have more tokens than its tokeniser has texts.
    if (prompt[i] < tokenizer.vocab_size()) chunk.mutable_text()->append(decoder.Push(prompt[i]));
  }
  pieces.back().mutable_chunk()->mutable_text()->append(decoder.Finish());
  return pieces;
}

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
      absl::StatusOr<PreparedGeneration> request = CancelledError("the client is gone");
      if (!call->HasEnded()) request = PrepareGeneration(received);
      if (!request.ok()) CountRefusal(received.request.is_deterministic(), request.status());
      call->Start(std::move(request));
    });
  }
  if (!status.ok()) {
    CountRefusal(is_deterministic, status);
    call->Fail(status);
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

absl::StatusOr<PreparedGeneration> InferenceService::PrepareGeneration(
    const ReceivedGeneration& received) const {
  const v1::GenerateRequest& request = received.request;
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, encoder_.Encode(request));
  RETURN_IF_ERROR(ValidateLengths(static_cast<int64_t>(prompt.size()), request, options_.limits));
  PreparedGeneration result;
  if (request.echo()) result.echo = MakeEcho(dependencies_.tokenizer, prompt);
  if (request.has_n()) result.choice_count = request.n();
  result.request = ToGenerationRequest(request, std::move(prompt), options_.defaults,
                                       options_.limits.context_limit, dependencies_.random());
  RETURN_IF_ERROR(ValidateResume(request, result.request.temperature, result.request.max_tokens));
  result.request.request_id = received.request_id;
  result.request.deadline = received.deadline;
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
