#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "decoder/client/command_line.h"
#include "decoder/client/commands.h"

namespace selfsame::client {
namespace {

nlohmann::ordered_json ToJson(const ServerInfo& info) {
  nlohmann::ordered_json json = {
      {"version", info.version},
      {"model", info.model},
      {"context_limit", info.context_limit},
      {"vocab_size", info.vocab_size},
      {"arithmetic", info.arithmetic},
      {"max_batch_size", info.max_batch_size},
      {"window_size", info.window_size},
      {"running_requests", info.running_requests},
      {"waiting_requests", info.waiting_requests},
      {"verifiers", nlohmann::ordered_json::array()},
  };
  for (const VerifierStatus& verifier : info.verifiers) {
    json["verifiers"].push_back({{"address", verifier.address},
                                 {"connected", verifier.connected},
                                 {"fingerprint", verifier.fingerprint},
                                 {"last_error", verifier.last_error}});
  }
  return json;
}

std::string ToTable(const ServerInfo& info) {
  std::string table;
  const auto row = [&table](const char* name, const auto& value) {
    absl::StrAppendFormat(&table, "%-18s %s\n", name, absl::StrCat(value));
  };
  row("version", info.version);
  row("model", info.model);
  row("context limit", info.context_limit);
  row("vocabulary", info.vocab_size);
  row("arithmetic", info.arithmetic);
  row("batch size", info.max_batch_size);
  row("window size", info.window_size);
  row("running requests", info.running_requests);
  row("waiting requests", info.waiting_requests);
  for (const VerifierStatus& verifier : info.verifiers) {
    row("verifier",
        absl::StrCat(verifier.address, verifier.connected ? ", connected" : ", not connected"));
    if (!verifier.fingerprint.empty()) row("  fingerprint", verifier.fingerprint);
    if (!verifier.last_error.empty()) row("  last error", verifier.last_error);
  }
  return table;
}

}  // namespace

int RunInfo(std::span<const std::string> arguments) {
  ConnectOptions connect;
  bool json = false;
  FlagParser parser("selfsame info [--flag=value ...]", "Prints what the server says of itself.");
  AddConnectFlags(parser, &connect);
  parser.Add("json", &json, "print JSON");
  if (const auto exit_status = ParseOrExit(parser, arguments)) return *exit_status;

  const auto client = Connect(connect);
  if (!client.ok()) return ReportError(client.status());
  const absl::StatusOr<ServerInfo> info = (*client)->GetServerInfo();
  if (!info.ok()) return ReportError(info.status());
  std::fputs(json ? (ToJson(*info).dump(2) + "\n").c_str() : ToTable(*info).c_str(), stdout);
  return kExitOk;
}

}  // namespace selfsame::client
