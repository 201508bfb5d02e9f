#include "decoder/client/command_line.h"

#include <cstdio>

#include "decoder/client/commands.h"

namespace selfsame::client {

void AddConnectFlags(FlagParser& parser, ConnectOptions* options) {
  parser.Add("server", &options->server, "HOST:PORT of the decoder");
  parser.Add("connect_timeout_s", &options->connect_timeout_s, "how long to wait for the server");
  parser.Add("timeout_s", &options->request_timeout_s, "deadline of a request; 0: none");
}

void AddRequestFlags(FlagParser& parser, Request* request) {
  parser.Add("deterministic", &request->is_deterministic,
             "the verified answer: the same tokens and logprobs every time");
  parser.Add("temperature", &request->temperature,
             "0 is greedy; unset, as the next four, the server's default");
  parser.Add("top_k", &request->top_k, "sample from the K likeliest tokens; 0: off");
  parser.Add("top_p", &request->top_p, "sample from the likeliest tokens of this mass; 1: off");
  parser.Add("min_p", &request->min_p,
             "sample from the tokens at least this share as likely as the likeliest; 0: off");
  parser.Add("repetition_penalty", &request->repetition_penalty,
             "above 1 makes tokens of prompt and output less likely; 1: off");
  parser.Add("presence_penalty", &request->presence_penalty,
             "taken off the logits of tokens of the output; 0: off");
  parser.Add("frequency_penalty", &request->frequency_penalty,
             "the same for each time a token is in the output; 0: off");
  parser.Add("logit_bias", &request->logit_bias,
             "TOKEN_ID:BIAS, added to the token's logit; may be repeated");
  parser.Add("seed", &request->seed, "of the noise; unset: drawn by the server");
  parser.Add("max_tokens", &request->max_tokens, "output tokens at most");
  parser.Add("min_tokens", &request->min_tokens, "output tokens before which nothing stops");
  parser.Add("stop", &request->stop, "ends the text before this string; may be repeated");
  parser.Add("ignore_eos", &request->ignore_eos, "go on past the end of sequence");
  parser.Add("expected_fingerprint", &request->expected_fingerprint,
             "fail unless the verifiers have this fingerprint");
  parser.Add("priority", &request->priority, "lower is sooner, from -1000 to 1000");
}

std::optional<int> ParseOrExit(FlagParser& parser, std::span<const std::string> arguments) {
  const absl::Status status = parser.Parse(arguments);
  if (parser.help_requested()) {
    std::fputs(parser.Help().c_str(), stdout);
    return kExitOk;
  }
  if (!status.ok()) return ReportError(status);
  return std::nullopt;
}

int ExitStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return kExitUsage;
    default:
      return kExitRequestFailed;
  }
}

int ReportError(const absl::Status& status) {
  std::fprintf(stderr, "selfsame: %s: %s\n", absl::StatusCodeToString(status.code()).c_str(),
               std::string(status.message()).c_str());
  return ExitStatusOf(status);
}

}  // namespace selfsame::client
