#pragma once

#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "decoder/client/flag_parser.h"
#include "decoder/client/inference_api.h"
#include "decoder/client/inference_client.h"

// What the commands share: flags for the connection and for a request, and error messages.
namespace selfsame::client {

// Adds --server, --connect_timeout_s and --timeout_s.
void AddConnectFlags(FlagParser& parser, ConnectOptions* options);

// Adds the flags of sampling, stop conditions and determinism; they write into `request`.
void AddRequestFlags(FlagParser& parser, Request* request);

// Parses and prints help or the error. Returns the exit status when the command is over.
std::optional<int> ParseOrExit(FlagParser& parser, std::span<const std::string> arguments);

// Prints "selfsame: CODE: message" and returns the exit status that fits the code.
int ReportError(const absl::Status& status);

// The exit status of a failure that ended a command: kExitUsage for what the user can correct on
// the command line.
int ExitStatusOf(const absl::Status& status);

}  // namespace selfsame::client
