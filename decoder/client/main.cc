// The `selfsame` command: a client of the decoder.

#include <cstdio>
#include <string>
#include <vector>

#include "decoder/client/commands.h"

namespace {

constexpr char kUsage[] =
    "usage: selfsame COMMAND [--flag=value ...]\n"
    "\n"
    "  generate  one completion, streamed\n"
    "  chat      a conversation, read from standard input\n"
    "  info      what the server is and which verifiers it has\n"
    "  check     shows that deterministic answers do not change, and that others do\n"
    "\n"
    "selfsame COMMAND --help lists the flags of a command.\n";

}  // namespace

int main(int argc, char** argv) {
  using namespace selfsame::client;  // NOLINT(google-build-using-namespace)
  if (argc < 2) {
    std::fputs(kUsage, stderr);
    return kExitUsage;
  }
  const std::string command = argv[1];
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (command == "generate") return RunGenerate(arguments);
  if (command == "chat") return RunChat(arguments);
  if (command == "info") return RunInfo(arguments);
  if (command == "check") return RunCheck(arguments);
  if (command == "help" || command == "--help" || command == "-h") {
    std::fputs(kUsage, stdout);
    return kExitOk;
  }
  std::fprintf(stderr, "selfsame: '%s' is not a command\n\n%s", command.c_str(), kUsage);
  return kExitUsage;
}
