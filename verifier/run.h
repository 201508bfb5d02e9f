#pragma once

#include "verifier/engine/verdict.h"

namespace selfsame::verifier {

// The verifier's main: parses flags, loads, tests, serves until SIGTERM or SIGINT, drains. Prints
// `listening on HOST:PORT` on standard output once it serves. Returns the exit status; a start that
// fails prints one line on standard error. `policy` is DecideWindow in the product.
int RunVerifier(int argc, char** argv, const WindowPolicy& policy);

}  // namespace selfsame::verifier
