#include "decoder/client/text_output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "decoder/client/preview_printer.h"

namespace selfsame::client {
namespace {

void Write(std::string_view bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  std::fflush(stdout);
}

TerminalSize OutputSize() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
    return {};
  }
  return {.rows = size.ws_row, .columns = size.ws_col};
}

}  // namespace

bool IsTerminalOutput() { return isatty(STDOUT_FILENO) != 0; }

TextCallback PrintText(Request& request) {
  request.on_candidates = nullptr;
  if (!request.stream_candidates || !IsTerminalOutput()) return Write;
  // Text that stands waits for the candidates behind it, and is printed with them.
  struct State {
    PreviewPrinter printer{OutputSize()};
    std::string waiting;
  };
  const auto state = std::make_shared<State>();
  request.on_candidates = [state](std::string_view candidates) {
    Write(state->printer.Update(state->waiting, candidates));
    state->waiting.clear();
  };
  return [state](std::string_view text) { state->waiting += text; };
}

}  // namespace selfsame::client
