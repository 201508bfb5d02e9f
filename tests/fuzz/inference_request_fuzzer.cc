// Every request message of inference.proto, from its bytes to what the engine is given: the first
// byte chooses the message. Outcomes are an INVALID_ARGUMENT that names a field, or a request
// within all limits.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/limits.h"
#include "common/sampling/logit_rules.h"
#include "common/tokenizer/utf8.h"
#include "decoder/convert.h"
#include "decoder/engine/output_stream.h"
#include "decoder/prompt_encoder.h"
#include "decoder/validate.h"

namespace selfsame::decoder {
namespace {

constexpr int32_t kContextLimit = 512;

struct Server {
  Server() {
    auto loaded = Tokenizer::Load(SELFSAME_SOURCE_DIR "/tests/data/tiny-kjv");
    SELFSAME_CHECK(loaded.ok());
    tokenizer = *std::move(loaded);
    encoder = std::make_unique<PromptEncoder>(*tokenizer);
    limits = {.context_limit = kContextLimit,
              .vocab_size = tokenizer->vocab_size() + 8,
              .tokenizer_vocab_size = tokenizer->vocab_size()};
    defaults.eos_token_ids = {1, 2};
  }

  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<PromptEncoder> encoder;
  RequestLimits limits;
  RequestDefaults defaults;
};

const Server& GetServer() {
  static const Server& server = *new Server;
  return server;
}

void CheckRefusal(const absl::Status& status) {
  SELFSAME_CHECK(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status));
  SELFSAME_CHECK(!status.message().empty());
  SELFSAME_CHECK(FirstInvalidUtf8(std::string(status.message())) == std::string::npos);
}

template <typename Message>
bool Parse(const std::string& bytes, Message& message) {
  if (message.ParseFromString(bytes)) return true;
  CheckRefusal(DescribeParseFailure(*Message::descriptor(), bytes));
  return false;
}

void CheckRequest(const GenerationRequest& request, const RequestLimits& limits) {
  const auto prompt_tokens = static_cast<int32_t>(request.prompt_token_ids.size());
  SELFSAME_CHECK(prompt_tokens > 0 && request.max_tokens > 0);
  SELFSAME_CHECK(prompt_tokens + request.max_tokens <= limits.context_limit);
  for (const int32_t id : request.prompt_token_ids) {
    SELFSAME_CHECK(id >= 0 && id < limits.vocab_size);
  }
  SELFSAME_CHECK(ValidateTemperature(request.temperature).ok() && ValidateMinP(request.min_p).ok());
  SELFSAME_CHECK(
      ValidateLogitRules(request.logit_rules, request.max_tokens, limits.vocab_size).ok());
  SELFSAME_CHECK(request.top_k >= 0 && request.top_p > 0.0f && request.top_p <= 1.0f);
  SELFSAME_CHECK(request.resume_token_ids.size() < static_cast<size_t>(request.max_tokens));
  SELFSAME_CHECK(request.is_deterministic || !request.stream_candidates);
  SELFSAME_CHECK(request.top_logprobs >= 0 && request.top_logprobs <= kMaxTopLogprobs);
  SELFSAME_CHECK(request.logprobs || request.top_logprobs == 0);
  const int32_t alternatives = request.prompt_logprobs.value_or(0);
  SELFSAME_CHECK(alternatives >= 0 && alternatives <= kMaxTopLogprobs);
  for (size_t i = 1; i < request.stop_token_ids.size(); ++i) {
    SELFSAME_CHECK(request.stop_token_ids[i - 1] < request.stop_token_ids[i]);
  }
}

// An answer of arbitrary tokens through the stop conditions.
void RunOutput(const Server& server, const GenerationRequest& request) {
  auto output =
      OutputStream::Create(*server.tokenizer, request.stop_strings, request.stop_token_ids,
                           request.max_tokens, request.logit_rules.min_tokens);
  if (!output.ok()) {
    CheckRefusal(output.status());
    return;
  }
  if (const absl::Status status = output->Resume(request.resume_token_ids); !status.ok()) {
    CheckRefusal(status);
    return;
  }
  std::string text;
  for (int32_t i = 0; !output->end(); ++i) {
    SELFSAME_CHECK(output->token_count() < request.max_tokens);
    const size_t source = static_cast<size_t>(i) % request.prompt_token_ids.size();
    text += output->Push((request.prompt_token_ids[source] + i) % server.limits.vocab_size);
    SELFSAME_CHECK(FirstInvalidUtf8(text) == std::string::npos);
  }
  for (const std::string& stop : request.stop_strings) {
    SELFSAME_CHECK(text.find(stop) == std::string::npos);
  }
}

void TestGenerate(const std::string& bytes) {
  const Server& server = GetServer();
  v1::GenerateRequest request;
  if (!Parse(bytes, request)) return;
  absl::Status status = ValidateGenerate(request, server.limits);
  if (!status.ok()) return CheckRefusal(status);
  auto prompt = server.encoder->Encode(request);
  if (!prompt.ok()) return CheckRefusal(prompt.status());
  status = ValidateLengths(static_cast<int64_t>(prompt->size()), request, server.limits);
  if (!status.ok()) return CheckRefusal(status);
  const GenerationRequest result =
      ToGenerationRequest(request, *std::move(prompt), server.defaults, kContextLimit, 7);
  status = ValidateResume(request, result.temperature, result.max_tokens);
  if (!status.ok()) return CheckRefusal(status);
  CheckRequest(result, server.limits);
  (void)ToProto(result).SerializeAsString();
  RunOutput(server, result);
}

void TestTokenize(const std::string& bytes) {
  v1::TokenizeRequest request;
  if (!Parse(bytes, request)) return;
  const absl::Status status = ValidateTokenize(request);
  if (!status.ok()) return CheckRefusal(status);
  const auto ids = GetServer().encoder->Encode(request);
  if (!ids.ok()) CheckRefusal(ids.status());
}

void TestDetokenize(const std::string& bytes) {
  v1::DetokenizeRequest request;
  if (!Parse(bytes, request)) return;
  const absl::Status status = ValidateDetokenize(request, GetServer().limits);
  if (!status.ok()) return CheckRefusal(status);
  const std::vector<int32_t> ids(request.token_ids().begin(), request.token_ids().end());
  SELFSAME_CHECK(GetServer().tokenizer->Decode(ids, false).ok());
}

}  // namespace
}  // namespace selfsame::decoder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      selfsame::decoder::TestGenerate(bytes);
      break;
    case 1:
      selfsame::decoder::TestTokenize(bytes);
      break;
    default:
      selfsame::decoder::TestDetokenize(bytes);
      break;
  }
  (void)selfsame::decoder::ValidateRequestId(bytes);
  return 0;
}
