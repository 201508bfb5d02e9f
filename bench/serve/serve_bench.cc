// Load generator: sends a closed loop or a Poisson stream of requests to a decoder over gRPC.

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/serve/load_plan.h"
#include "bench/serve/load_report.h"
#include "bench/serve/load_run.h"
#include "bench/serve/recording.h"
#include "common/errors.h"
#include "common/limits.h"
#include "decoder/client/files.h"
#include "decoder/client/flag_parser.h"
#include "decoder/client/inference_client.h"

namespace selfsame::bench {
namespace {

constexpr int32_t kMaxRequests = 1000000;

struct Flags {
  client::ConnectOptions connect{.request_timeout_s = 600.0};
  LoadOptions load;
  int32_t concurrency = 8;
  double duration_s = 0.0;
  std::string prompt_tokens = "128";
  std::string output_tokens = "128";
  std::optional<std::string> json;
  std::optional<std::string> record;
  bool flag_off = false;
};

void AddFlags(client::FlagParser& parser, Flags& flags) {
  parser.Add("server", &flags.connect.server, "HOST:PORT of the decoder");
  parser.Add("connect_timeout_s", &flags.connect.connect_timeout_s,
             "how long to wait for the server");
  parser.Add("timeout_s", &flags.connect.request_timeout_s, "deadline of a request; 0: none");
  parser.Add("requests", &flags.load.requests, "how many to send");
  parser.Add("duration_s", &flags.duration_s, "send none after this time; 0: no such end");
  parser.Add("concurrency", &flags.concurrency, "requests in flight at most");
  parser.Add("rate", &flags.load.rate,
             "arrivals a second, of a Poisson process; 0: a closed loop. Needs a --concurrency "
             "above what will be in flight");
  parser.Add("deterministic_share", &flags.load.deterministic_share, "from 0 to 1");
  parser.Add("cancel_share", &flags.load.cancel_share,
             "from 0 to 1: requests cancelled at a random token");
  parser.Add("flag_off", &flags.flag_off,
             "send every request as an ordinary one; the figures still tell apart those that "
             "--deterministic_share would have made deterministic");
  parser.Add("prompt_tokens", &flags.prompt_tokens, "COUNT or MINIMUM:MAXIMUM");
  parser.Add("output_tokens", &flags.output_tokens, "COUNT or MINIMUM:MAXIMUM");
  parser.Add("temperature", &flags.load.temperature, "0: greedy");
  parser.Add("seed", &flags.load.seed, "decides lengths, prompts, order and arrivals");
  parser.Add("json", &flags.json, "file to write the figures to");
  parser.Add("record", &flags.record,
             "file to write the deterministic requests and their answers to, for verify_load");
}

absl::Status Validate(Flags& flags) {
  if (flags.load.requests < 1 || flags.load.requests > kMaxRequests) {
    return InvalidArgumentError("--requests", absl::StrCat("must be from 1 to ", kMaxRequests));
  }
  if (flags.concurrency < 1 || flags.concurrency > kMaxClientConcurrency) {
    return InvalidArgumentError("--concurrency",
                                absl::StrCat("must be from 1 to ", kMaxClientConcurrency));
  }
  // Written so that NaN fails.
  if (!(flags.load.rate >= 0)) return InvalidArgumentError("--rate", "must not be negative");
  if (!(flags.duration_s >= 0)) return InvalidArgumentError("--duration_s", "must not be negative");
  if (!(flags.load.deterministic_share >= 0 && flags.load.deterministic_share <= 1)) {
    return InvalidArgumentError("--deterministic_share", "must be from 0 to 1");
  }
  if (!(flags.load.cancel_share >= 0 && flags.load.cancel_share <= 1)) {
    return InvalidArgumentError("--cancel_share", "must be from 0 to 1");
  }
  ASSIGN_OR_RETURN(flags.load.prompt_tokens, ParseRange("--prompt_tokens", flags.prompt_tokens));
  ASSIGN_OR_RETURN(flags.load.output_tokens, ParseRange("--output_tokens", flags.output_tokens));
  return absl::OkStatus();
}

absl::StatusOr<LoadResult> Run(Flags& flags) {
  RETURN_IF_ERROR(Validate(flags));
  ASSIGN_OR_RETURN(const auto server, client::Connect(flags.connect));
  ASSIGN_OR_RETURN(const client::ServerInfo info, server->GetServerInfo());
  if (info.vocab_size < 1) return InternalError("the server reports an empty vocabulary");
  flags.load.vocab_size = info.vocab_size;
  const std::vector<PlannedRequest> plan = PlanLoad(flags.load);
  std::vector<PlannedRequest> sent = plan;
  for (PlannedRequest& planned : sent) {
    if (flags.flag_off) planned.request.is_deterministic = false;
  }
  LoadResult result = RunLoad(*server, sent, flags.concurrency, flags.duration_s);
  for (LoadSample& sample : result.samples) {
    sample.is_deterministic = plan[sample.plan_index].request.is_deterministic;
  }
  if (flags.record) {
    RETURN_IF_ERROR(client::WriteTextFile(*flags.record, WriteRecording(plan, result)));
  }
  return result;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "serve_bench: %s: %s\n", absl::StatusCodeToString(status.code()).c_str(),
               std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

int Main(const std::vector<std::string>& arguments) {
  Flags flags;
  client::FlagParser parser(
      "serve_bench [--flag=value ...]",
      "Sends requests with random prompts to a decoder and prints throughput, time to first\n"
      "token, time per output token and rollback figures.");
  AddFlags(parser, flags);
  const absl::Status parsed = parser.Parse(arguments);
  if (parser.help_requested()) {
    std::fputs(parser.Help().c_str(), stdout);
    return 0;
  }
  if (!parsed.ok()) return Fail(parsed);
  const absl::StatusOr<LoadResult> result = Run(flags);
  if (!result.ok()) return Fail(result.status());
  std::fputs(ToTable(*result).c_str(), stdout);
  if (flags.json) {
    const std::string command = absl::StrCat("serve_bench ", absl::StrJoin(arguments, " "));
    const std::string date = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
    const absl::Status written = client::WriteTextFile(*flags.json, ToJson(*result, command, date));
    if (!written.ok()) return Fail(written);
  }
  return result->errors == 0 ? 0 : 1;
}

}  // namespace
}  // namespace selfsame::bench

int main(int argc, char** argv) {
  return selfsame::bench::Main(std::vector<std::string>(argv + 1, argv + argc));
}
