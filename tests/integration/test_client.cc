#include "tests/integration/test_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/logprobs.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "selfsame/v1/inference.grpc.pb.h"

namespace selfsame::testing {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr std::chrono::seconds kUnaryTimeout(60);
constexpr char kRequestIdKey[] = "x-request-id";

std::shared_ptr<grpc::Channel> CreateChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void SetTimeout(grpc::ClientContext& context, std::chrono::milliseconds timeout) {
  context.set_deadline(std::chrono::system_clock::now() + timeout);
}

// Sends one message and takes one, whatever kind of call `method` is.
absl::StatusOr<std::string> CallRaw(const std::shared_ptr<grpc::Channel>& channel,
                                    const std::string& method, const std::string& bytes) {
  grpc::ClientContext context;
  SetTimeout(context, kUnaryTimeout);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return FromGrpcStatus(status);
  grpc::Slice answer;
  if (!response.DumpToSingleSlice(&answer).ok()) return absl::InternalError("no answer");
  return std::string(reinterpret_cast<const char*>(answer.begin()), answer.size());
}

// As the comment of Chunk in inference.proto says.
void CommitCandidates(const v1::Chunk& chunk, GenerateResult& answer) {
  const auto count =
      std::min(answer.candidates.size(), static_cast<size_t>(chunk.token_ids_size()));
  std::string shown;
  for (size_t i = 0; i < count; ++i) {
    if (answer.candidates[i].token_ids(0) != chunk.token_ids(static_cast<int>(i))) {
      answer.violation = "a candidate changed without a retract";
    }
    shown += answer.candidates[i].text();
  }
  if (chunk.text().compare(0, shown.size(), shown) != 0) {
    answer.violation = "the text of a candidate changed without a retract";
  }
  answer.candidates.erase(answer.candidates.begin(),
                          answer.candidates.begin() + static_cast<int64_t>(count));
}

// The choice an event is of; a violation of the answer when there is none that takes it.
GenerateResult& FindChoice(int choice_index, GenerateResult& answer) {
  if (choice_index == 0) return answer;
  const auto index = static_cast<size_t>(choice_index) - 1;
  if (index < answer.other_choices.size()) return answer.other_choices[index];
  answer.violation = absl::StrCat("an event of choice ", choice_index);
  return answer;
}

void AddEcho(const v1::Chunk& chunk, GenerateResult& answer) {
  if (chunk.first_position() != static_cast<int>(answer.prompt_token_ids.size()) ||
      chunk.choice_index() != 0 || chunk.logprobs_size() > 0 || !answer.token_ids.empty()) {
    answer.violation = "an echo out of turn";
  }
  answer.prompt_token_ids.insert(answer.prompt_token_ids.end(), chunk.token_ids().begin(),
                                 chunk.token_ids().end());
  answer.prompt_text += chunk.text();
}

void AddChunk(const v1::Chunk& chunk, int resumed, GenerateResult& all) {
  GenerateResult& answer = FindChoice(chunk.choice_index(), all);
  if (!all.started.has_value() || answer.complete.has_value()) {
    all.violation = "a chunk outside of Started and Complete";
    return;
  }
  const int prompt_tokens = all.started->prompt_tokens();
  if (chunk.token_ids_size() > 0 && chunk.first_position() < prompt_tokens) {
    AddEcho(chunk, all);
    return;
  }
  int expected = prompt_tokens + resumed + static_cast<int>(answer.token_ids.size());
  if (chunk.is_candidate()) expected += static_cast<int>(answer.candidates.size());
  if (chunk.token_ids_size() > 0 && chunk.first_position() != expected) {
    all.violation =
        absl::StrCat("chunk at position ", chunk.first_position(), ", expected ", expected);
  }
  if (chunk.is_candidate()) {
    if (chunk.token_ids_size() != 1) all.violation = "not one candidate";
    answer.candidates.push_back(chunk);
    ++answer.candidate_count;
    return;
  }
  CommitCandidates(chunk, answer);
  if (&answer != &all && !answer.violation.empty()) all.violation = answer.violation;
  answer.token_ids.insert(answer.token_ids.end(), chunk.token_ids().begin(),
                          chunk.token_ids().end());
  for (const float logprob : chunk.logprobs()) {
    answer.logprob_bits.push_back(std::bit_cast<uint32_t>(logprob));
  }
  for (const v1::TopLogprobs& proto : chunk.top_logprobs()) {
    const auto top = FromProto(proto);
    if (!top.ok()) all.violation = top.status().ToString();
    answer.top_logprobs.push_back(top.value_or(TopLogprobs()));
  }
  answer.text += chunk.text();
}

void AddRetract(const v1::Retract& retract, int resumed, GenerateResult& all) {
  GenerateResult& answer = FindChoice(retract.choice_index(), all);
  const int kept = retract.length() - all.started->prompt_tokens() - resumed -
                   static_cast<int>(answer.token_ids.size());
  if (kept < 0 || kept >= static_cast<int>(answer.candidates.size())) {
    all.violation = absl::StrCat("retract to ", retract.length());
    return;
  }
  answer.candidates.resize(static_cast<size_t>(kept));
  ++answer.retract_count;
}

void AddPromptLogprobs(const v1::PromptLogprobs& piece, GenerateResult& answer) {
  const auto entries = FromProto(piece);
  if (!entries.ok() || !answer.token_ids.empty() ||
      piece.first_position() != static_cast<int>(answer.prompt_logprobs.size()) + 1) {
    answer.violation = "prompt logprobs out of turn, or malformed";
    return;
  }
  answer.prompt_logprobs.insert(answer.prompt_logprobs.end(), entries->begin(), entries->end());
}

void AddComplete(const v1::Complete& complete, GenerateResult& all) {
  GenerateResult& answer = FindChoice(complete.choice_index(), all);
  if (answer.complete.has_value()) all.violation = "complete twice";
  answer.complete = complete;
  if (!answer.candidates.empty()) all.violation = "candidates are left at the end";
}

// `resumed`: tokens the request came with.
void AddResponse(const v1::GenerateResponse& response, int resumed, GenerateResult& answer) {
  switch (response.event_case()) {
    case v1::GenerateResponse::kStarted:
      if (answer.started.has_value()) answer.violation = "started twice";
      answer.started = response.started();
      break;
    case v1::GenerateResponse::kChunk:
      AddChunk(response.chunk(), resumed, answer);
      break;
    case v1::GenerateResponse::kPromptLogprobs:
      AddPromptLogprobs(response.prompt_logprobs(), answer);
      break;
    case v1::GenerateResponse::kComplete:
      AddComplete(response.complete(), answer);
      break;
    case v1::GenerateResponse::kRetract:
      AddRetract(response.retract(), resumed, answer);
      break;
    case v1::GenerateResponse::EVENT_NOT_SET:
      answer.violation = "an empty response";
      break;
  }
}

}  // namespace

bool IsSameAnswer(const GenerateResult& a, const GenerateResult& b) {
  return a.status == b.status && a.token_ids == b.token_ids && a.logprob_bits == b.logprob_bits &&
         a.top_logprobs == b.top_logprobs && a.prompt_logprobs == b.prompt_logprobs;
}

std::string Describe(const GenerateResult& answer) {
  return absl::StrCat(answer.status.ToString(), ", ", answer.token_ids.size(), " tokens ",
                      answer.violation);
}

struct TestClient::Stubs {
  explicit Stubs(std::shared_ptr<grpc::Channel> shared_channel)
      : channel(std::move(shared_channel)),
        inference(v1::Inference::NewStub(channel)),
        health(Health::NewStub(channel)) {}

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> inference;
  std::unique_ptr<Health::Stub> health;
};

TestClient::TestClient(const std::string& address)
    : stubs_(std::make_unique<Stubs>(CreateChannel(address))) {}

TestClient::~TestClient() = default;

GenerateResult TestClient::Generate(const v1::GenerateRequest& request,
                                    const CallOptions& options) {
  grpc::ClientContext context;
  SetTimeout(context, options.timeout);
  if (!options.request_id.empty()) context.AddMetadata(kRequestIdKey, options.request_id);
  GenerateResult answer;
  answer.other_choices.resize(static_cast<size_t>(std::max(0, request.n() - 1)));
  const auto reader = stubs_->inference->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    AddResponse(response, request.resume_token_ids_size(), answer);
    if (response.has_chunk() && options.on_chunk &&
        !options.on_chunk(static_cast<int>(answer.token_ids.size()))) {
      context.TryCancel();
    }
  }
  answer.status = FromGrpcStatus(reader->Finish());
  const auto& metadata = context.GetServerInitialMetadata();
  if (const auto it = metadata.find(kRequestIdKey); it != metadata.end()) {
    answer.request_id.assign(it->second.data(), it->second.size());
  }
  bool is_complete = answer.complete.has_value();
  for (const GenerateResult& choice : answer.other_choices) {
    is_complete = is_complete && choice.complete.has_value();
  }
  if (answer.status.ok() && !is_complete) answer.violation = "OK, not complete";
  return answer;
}

absl::Status TestClient::GenerateRaw(const std::string& bytes) {
  return CallRaw(stubs_->channel, "/selfsame.v1.Inference/Generate", bytes).status();
}

absl::StatusOr<std::string> TestClient::ReflectServices() {
  // ServerReflectionRequest{list_services: "*"}.
  return CallRaw(stubs_->channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                 "\x3a\x01*");
}

absl::StatusOr<v1::TokenizeResponse> TestClient::Tokenize(const v1::TokenizeRequest& request) {
  grpc::ClientContext context;
  SetTimeout(context, kUnaryTimeout);
  v1::TokenizeResponse response;
  const grpc::Status status = stubs_->inference->Tokenize(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> TestClient::Detokenize(
    const v1::DetokenizeRequest& request) {
  grpc::ClientContext context;
  SetTimeout(context, kUnaryTimeout);
  v1::DetokenizeResponse response;
  const grpc::Status status = stubs_->inference->Detokenize(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<v1::GetServerInfoResponse> TestClient::GetServerInfo() {
  grpc::ClientContext context;
  SetTimeout(context, kUnaryTimeout);
  v1::GetServerInfoResponse response;
  const grpc::Status status =
      stubs_->inference->GetServerInfo(&context, v1::GetServerInfoRequest(), &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<bool> TestClient::IsServing(const std::string& name) {
  grpc::ClientContext context;
  SetTimeout(context, kUnaryTimeout);
  HealthCheckRequest request;
  request.set_service(name);
  HealthCheckResponse response;
  const grpc::Status status = stubs_->health->Check(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response.status() == HealthCheckResponse::SERVING;
}

bool TestClient::WaitForHealth(const std::string& name, bool is_serving,
                               std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  HealthCheckRequest request;
  request.set_service(name);
  const auto reader = stubs_->health->Watch(&context, request);
  HealthCheckResponse response;
  bool is_as_wanted = false;
  while (!is_as_wanted && reader->Read(&response)) {
    is_as_wanted = (response.status() == HealthCheckResponse::SERVING) == is_serving;
  }
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  reader->Finish();
  return is_as_wanted;
}

bool TestClient::WaitForInfo(
    const std::function<bool(const v1::GetServerInfoResponse&)>& is_as_wanted,
    std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < end) {
    const auto info = GetServerInfo();
    if (!info.ok()) return false;
    if (is_as_wanted(*info)) return true;
  }
  return false;
}

bool TestClient::WaitUntilIdle(std::chrono::milliseconds timeout) {
  return WaitForInfo(
      [](const v1::GetServerInfoResponse& info) {
        return info.running_requests() + info.waiting_requests() == 0;
      },
      timeout);
}

bool TestClient::WaitUntilBusy(std::chrono::milliseconds timeout) {
  return WaitForInfo(
      [](const v1::GetServerInfoResponse& info) { return info.running_requests() > 0; }, timeout);
}

}  // namespace selfsame::testing
