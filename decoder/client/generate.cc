#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/file.h"
#include "common/limits.h"
#include "decoder/client/command_line.h"
#include "decoder/client/commands.h"
#include "decoder/client/text_output.h"

namespace selfsame::client {
namespace {

struct GenerateFlags {
  ConnectOptions connect;
  Request request;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  bool chat = false;
  bool json = false;
};

absl::Status FillInput(GenerateFlags& flags) {
  if (flags.prompt.has_value() == flags.prompt_file.has_value()) {
    return InvalidArgumentError("--prompt", "exactly one of --prompt and --prompt_file is needed");
  }
  std::string text;
  if (flags.prompt) {
    text = *flags.prompt;
  } else {
    ASSIGN_OR_RETURN(text, ReadFile(*flags.prompt_file, kMaxPromptBytes));
  }
  if (flags.chat) {
    flags.request.input = std::vector<ChatMessage>{{"user", std::move(text)}};
  } else {
    flags.request.input = std::move(text);
  }
  return absl::OkStatus();
}

double Seconds(SteadyTime::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

nlohmann::ordered_json ToJson(const TopLogprobs& top) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const TokenLogprob& token : top) {
    json.push_back({{"token_id", token.token_id}, {"logprob", token.logprob}});
  }
  return json;
}

// What each choice has of its own.
nlohmann::ordered_json ChoiceToJson(const Answer& answer) {
  nlohmann::ordered_json json = {
      {"text", answer.text},
      {"token_ids", answer.token_ids},
      {"finish_reason", FinishReasonName(answer.finish_reason)},
      {"output_tokens", answer.token_ids.size()},
      {"seconds", Seconds(answer.last_token - answer.sent)},
      {"seconds_to_first_token", Seconds(answer.first_token - answer.sent)},
  };
  if (!answer.logprobs.empty()) json["logprobs"] = answer.logprobs;
  for (const TopLogprobs& top : answer.top_logprobs) json["top_logprobs"].push_back(ToJson(top));
  if (answer.stop_string) json["stop_string"] = *answer.stop_string;
  if (answer.stop_token_id) json["stop_token_id"] = *answer.stop_token_id;
  if (!answer.fingerprint.empty()) {
    json["windows"] = answer.windows;
    json["rollbacks"] = answer.rollbacks;
    json["rolled_back_tokens"] = answer.rolled_back_tokens;
    json["redecoded_tokens"] = answer.redecoded_tokens;
    json["verifier_cached_prompt_tokens"] = answer.verifier_cached_prompt_tokens;
  }
  if (answer.candidates > 0) {
    json["candidates"] = answer.candidates;
    json["retracts"] = answer.retracts;
  }
  if (answer.resumes > 0) json["resumes"] = answer.resumes;
  return json;
}

nlohmann::ordered_json ToJson(const Answer& answer) {
  nlohmann::ordered_json json = {{"request_id", answer.request_id},
                                 {"prompt_tokens", answer.prompt_tokens},
                                 {"cached_prompt_tokens", answer.cached_prompt_tokens},
                                 {"temperature", answer.temperature},
                                 {"top_k", answer.top_k},
                                 {"top_p", answer.top_p},
                                 {"min_p", answer.min_p},
                                 {"repetition_penalty", answer.repetition_penalty},
                                 {"presence_penalty", answer.presence_penalty},
                                 {"frequency_penalty", answer.frequency_penalty},
                                 {"seed", answer.seed},
                                 {"max_tokens", answer.max_tokens},
                                 {"min_tokens", answer.min_tokens}};
  if (!answer.fingerprint.empty()) json["fingerprint"] = answer.fingerprint;
  if (!answer.prompt_token_ids.empty()) {
    json["prompt_token_ids"] = answer.prompt_token_ids;
    json["prompt_text"] = answer.prompt_text;
  }
  for (const PromptLogprob& entry : answer.prompt_logprobs) {
    json["prompt_logprobs"].push_back(entry.logprob);
    if (!entry.top.empty()) json["prompt_top_logprobs"].push_back(ToJson(entry.top));
  }
  json.update(ChoiceToJson(answer));
  for (const Answer& choice : answer.other_choices) {
    json["other_choices"].push_back(ChoiceToJson(choice));
  }
  return json;
}

void PrintSummary(const Answer& answer) {
  std::string line =
      absl::StrFormat("[%d prompt tokens (%d cached), %d output tokens in %.2f s, %s, seed %d",
                      answer.prompt_tokens, answer.cached_prompt_tokens, answer.token_ids.size(),
                      Seconds(answer.last_token - answer.sent),
                      std::string(FinishReasonName(answer.finish_reason)), answer.seed);
  if (!answer.fingerprint.empty()) {
    absl::StrAppendFormat(
        &line, ", %d cached at the verifier, %d windows, %d rollbacks, fingerprint %.12s",
        answer.verifier_cached_prompt_tokens, answer.windows, answer.rollbacks, answer.fingerprint);
  }
  std::fprintf(stderr, "%s]\n", line.c_str());
}

// Nine significant digits give back the float exactly.
void PrintTop(const TopLogprobs& top) {
  for (const TokenLogprob& token : top) {
    std::printf(" %d:%.9g", token.token_id, static_cast<double>(token.logprob));
  }
  std::puts("");
}

void PrintLogprobs(const Answer& answer) {
  for (size_t i = 0; i < answer.logprobs.size(); ++i) {
    std::printf("%zu %d %.9g", static_cast<size_t>(answer.prompt_tokens) + i, answer.token_ids[i],
                static_cast<double>(answer.logprobs[i]));
    PrintTop(answer.top_logprobs.empty() ? TopLogprobs() : answer.top_logprobs[i]);
  }
}

void PrintPromptLogprobs(const Answer& answer) {
  for (size_t i = 0; i < answer.prompt_logprobs.size(); ++i) {
    const PromptLogprob& entry = answer.prompt_logprobs[i];
    std::printf("prompt %zu %.9g", i + 1, static_cast<double>(entry.logprob));
    PrintTop(entry.top);
  }
}

// Choice 0's text was printed as it came, unless there are others.
void PrintAnswer(const Answer& answer) {
  std::vector<const Answer*> choices = {&answer};
  for (const Answer& choice : answer.other_choices) choices.push_back(&choice);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices.size() > 1) {
      std::printf("[choice %zu]\n%s%s\n", i, answer.prompt_text.c_str(), choices[i]->text.c_str());
    }
    if (i == 0) PrintPromptLogprobs(answer);
    PrintLogprobs(*choices[i]);
    std::fflush(stdout);
    PrintSummary(*choices[i]);
  }
}

}  // namespace

int RunGenerate(std::span<const std::string> arguments) {
  GenerateFlags flags;
  FlagParser parser("selfsame generate --prompt=TEXT [--flag=value ...]",
                    "Sends one prompt and prints the text as it arrives, and at the end a line of "
                    "figures on standard error.");
  AddConnectFlags(parser, &flags.connect);
  parser.Add("prompt", &flags.prompt, "the prompt; special tokens in it are recognised");
  parser.Add("prompt_file", &flags.prompt_file, "file that holds the prompt");
  parser.Add("chat", &flags.chat, "send the prompt as a user's message, in the chat template");
  AddRequestFlags(parser, &flags.request);
  parser.Add("logprobs", &flags.request.logprobs,
             "print position, token id and logprob of each output token after the text");
  parser.Add("n", &flags.request.n, "choices, each with noise of its own");
  parser.Add("top_logprobs", &flags.request.top_logprobs,
             "with --logprobs: and as many of the likeliest tokens, each as ID:LOGPROB");
  parser.Add("prompt_logprobs", &flags.request.prompt_logprobs,
             "print \"prompt\", position and logprob of each prompt token but the first, and as "
             "many of the likeliest tokens in its place");
  parser.Add("echo", &flags.request.echo, "print the prompt, as it was tokenised, before the text");
  parser.Add("stream_candidates", &flags.request.stream_candidates,
             "with --deterministic: receive tokens before they are verified; a terminal shows them "
             "dim, and erases those that do not stand");
  parser.Add("resume_attempts", &flags.request.resume_attempts,
             "how often to go on with the answer when its stream breaks");
  parser.Add("json", &flags.json, "print one JSON object instead of streaming");
  if (const auto exit_status = ParseOrExit(parser, arguments)) return *exit_status;
  if (const absl::Status status = FillInput(flags); !status.ok()) return ReportError(status);

  const auto client = Connect(flags.connect);
  if (!client.ok()) return ReportError(client.status());
  // Several texts at once could not be read.
  const bool streams_text = !flags.json && flags.request.n == 1;
  TextCallback on_text;
  if (streams_text) on_text = PrintText(flags.request);
  const absl::StatusOr<Answer> answer = (*client)->Generate(flags.request, on_text);
  if (streams_text) std::puts("");
  if (!answer.ok()) return ReportError(answer.status());
  if (flags.json) {
    std::puts(ToJson(*answer).dump(2).c_str());
    return kExitOk;
  }
  PrintAnswer(*answer);
  return kExitOk;
}

}  // namespace selfsame::client
