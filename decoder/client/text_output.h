#pragma once

#include "decoder/client/inference_api.h"

namespace selfsame::client {

// Whether standard output is a terminal, which can take back what it shows.
bool IsTerminalOutput();

// What prints an answer's text on standard output as it arrives, to be given to Generate with
// `request`. On a terminal it shows candidates behind the text, dim, if the request streams them;
// sets `request.on_candidates` for that. For one answer.
TextCallback PrintText(Request& request);

}  // namespace selfsame::client
