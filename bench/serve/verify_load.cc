// Puts the verifier's share of a recorded load on a verifier, with no decoder in between, so that
// what the decoder does for it can be told from what the two cost each other by sharing a machine.

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/serve/recording.h"
#include "bench/serve/verify_replay.h"
#include "common/errors.h"
#include "common/file.h"
#include "decoder/client/flag_parser.h"
#include "decoder/verifier_client.h"

namespace selfsame::bench {
namespace {

constexpr int64_t kMaxRecordingBytes = int64_t{256} << 20;

struct Flags {
  std::string verifier = "127.0.0.1:50052";
  std::string replay;
  int32_t context_limit = 0;
  int32_t vocab_size = 0;
};

absl::Status Run(const Flags& flags) {
  if (flags.replay.empty()) return InvalidArgumentError("--replay", "is required");
  ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.replay, kMaxRecordingBytes));
  ASSIGN_OR_RETURN(std::vector<RecordedRequest> requests, ReadRecording(text));
  VerifyReplay replay(std::move(requests));
  decoder::VerifierClient link({.index = 0,
                                .address = flags.verifier,
                                .context_limit = flags.context_limit,
                                .vocab_size = flags.vocab_size});
  link.Start(replay);
  const ReplayResult result = replay.Run(link);
  link.Stop();
  std::printf("%lld sessions, %lld windows committed, %lld sessions failed\n",
              static_cast<long long>(result.sessions), static_cast<long long>(result.windows),
              static_cast<long long>(result.failures));
  if (result.failures > 0) return InternalError(result.last_error);
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  Flags flags;
  client::FlagParser parser("verify_load --replay=FILE [--flag=value ...]",
                            "Plays what serve_bench --record wrote to a verifier.");
  parser.Add("verifier", &flags.verifier, "HOST:PORT of the verifier");
  parser.Add("replay", &flags.replay, "file that serve_bench --record wrote");
  parser.Add("context_limit", &flags.context_limit, "of the verifier, which checks it");
  parser.Add("vocab_size", &flags.vocab_size, "of the verifier, which checks it");
  absl::Status status = parser.Parse(arguments);
  if (parser.help_requested()) {
    std::fputs(parser.Help().c_str(), stdout);
    return 0;
  }
  if (status.ok()) status = Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "verify_load: %s\n", status.ToString().c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

}  // namespace
}  // namespace selfsame::bench

int main(int argc, char** argv) {
  return selfsame::bench::Main(std::vector<std::string>(argv + 1, argv + argc));
}
