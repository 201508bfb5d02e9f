#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <optional>
#include <string>

#include "decoder/client/command_line.h"
#include "decoder/client/commands.h"
#include "decoder/client/text_output.h"

namespace selfsame::client {
namespace {

void StartConversation(const std::optional<std::string>& system,
                       std::vector<ChatMessage>& messages) {
  messages.clear();
  if (system) messages.push_back({"system", *system});
}

}  // namespace

int RunChat(std::span<const std::string> arguments) {
  ConnectOptions connect;
  Request request;
  std::optional<std::string> system;
  FlagParser parser("selfsame chat [--flag=value ...]",
                    "A conversation: one line of standard input is one message. /reset starts "
                    "again, /exit or the end of input ends it. On a terminal the text of a "
                    "deterministic answer is shown at once, dim until it is verified.");
  bool stream_candidates = IsTerminalOutput();
  AddConnectFlags(parser, &connect);
  parser.Add("system", &system, "the system message");
  AddRequestFlags(parser, &request);
  parser.Add("stream_candidates", &stream_candidates,
             "with --deterministic: show tokens before they are verified");
  if (const auto exit_status = ParseOrExit(parser, arguments)) return *exit_status;

  request.stream_candidates = stream_candidates && request.is_deterministic;
  const auto client = Connect(connect);
  if (!client.ok()) return ReportError(client.status());
  const bool interactive = isatty(STDIN_FILENO) != 0;
  std::vector<ChatMessage> messages;
  StartConversation(system, messages);
  int exit_status = kExitOk;
  std::string line;
  while (true) {
    if (interactive) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line.empty()) continue;
    if (line == "/reset") {
      StartConversation(system, messages);
      continue;
    }
    messages.push_back({"user", line});
    request.input = messages;
    const TextCallback on_text = PrintText(request);
    const absl::StatusOr<Answer> answer = (*client)->Generate(request, on_text);
    std::puts("");
    std::fflush(stdout);
    if (!answer.ok()) {
      // The message stays unsaid, so that the user can try another.
      exit_status = ReportError(answer.status());
      messages.pop_back();
      continue;
    }
    exit_status = kExitOk;
    messages.push_back({"assistant", answer->text});
  }
  return exit_status;
}

}  // namespace selfsame::client
