#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/file.h"
#include "decoder/client/check_plan.h"
#include "decoder/client/check_prompts.h"
#include "decoder/client/check_report.h"
#include "decoder/client/check_run.h"
#include "decoder/client/command_line.h"
#include "decoder/client/commands.h"
#include "decoder/client/files.h"

namespace selfsame::client {
namespace {

constexpr int64_t kMaxReferenceBytes = int64_t{256} << 20;

struct CheckFlags {
  ConnectOptions connect{.request_timeout_s = 600.0};
  std::optional<std::string> prompts;
  std::string phases = "2:0.25,4:0,8:0.5";
  CaseOptions cases;
  std::optional<float> temperature;
  bool raw = false;
  uint64_t order_seed = 1;
  bool require_control = false;
  std::optional<std::string> json;
  std::optional<std::string> reference;
  std::optional<std::string> save_reference;
  bool phases_only = false;
};

void AddFlags(FlagParser& parser, CheckFlags& flags) {
  AddConnectFlags(parser, &flags.connect);
  parser.Add("prompts", &flags.prompts, "file with one prompt a line; unset: a built-in set");
  parser.Add("raw", &flags.raw, "send prompts as they are, not in the chat template");
  parser.Add("phases", &flags.phases,
             "replays: CONCURRENCY:SHARE_OF_ORDINARY_REQUESTS, separated by commas");
  parser.Add("max_tokens", &flags.cases.max_tokens, "output tokens of a request");
  parser.Add("ignore_eos", &flags.cases.ignore_eos,
             "go on past the end of sequence, so that every output is long");
  parser.Add(
      "shared_prefix", &flags.cases.shared_prefix,
      "let every second prompt begin with the same paragraph, for the prefix caches to find");
  parser.Add("temperature", &flags.temperature, "of the seeded half (0.8); the other is greedy");
  parser.Add("order_seed", &flags.order_seed, "decides the order of the requests in the phases");
  parser.Add("require_control", &flags.require_control,
             "fail, too, when no ordinary answer diverged or nothing was rolled back: such a run "
             "shows nothing");
  parser.Add("json", &flags.json, "file to write the figures to");
  parser.Add("reference", &flags.reference,
             "file of answers to compare with, from an earlier run's --save_reference");
  parser.Add("save_reference", &flags.save_reference, "file to write the answers to");
  parser.Add(
      "phases_only", &flags.phases_only,
      "do not send the requests one at a time first: the reference's answers stand for that; needs "
      "a phase, and ordinary answers in the reference when a phase has ordinary requests");
}

absl::StatusOr<CheckOptions> ToOptions(CheckFlags& flags) {
  CheckOptions options;
  if (flags.cases.max_tokens < 1) {
    return InvalidArgumentError("--max_tokens", "must be at least 1");
  }
  flags.cases.chat = !flags.raw;
  if (flags.temperature) flags.cases.temperature = *flags.temperature;
  std::vector<std::string> prompts = BuiltInPrompts();
  if (flags.prompts) {
    ASSIGN_OR_RETURN(prompts, ReadPrompts(*flags.prompts));
  }
  options.cases = BuildCases(prompts, flags.cases);
  ASSIGN_OR_RETURN(options.phases, ParsePhases(flags.phases));
  options.order_seed = flags.order_seed;
  options.phases_only = flags.phases_only;
  if (flags.phases_only && flags.save_reference) {
    return InvalidArgumentError("--phases_only", "has no answers for --save_reference");
  }
  if (flags.reference) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(*flags.reference, kMaxReferenceBytes));
    ASSIGN_OR_RETURN(SavedReference reference, ParseReference(*flags.reference, text));
    options.reference = std::move(reference);
  }
  RETURN_IF_ERROR(ValidateOptions(options));
  return options;
}

absl::Status WriteFiles(const CheckFlags& flags, const CheckOptions& options,
                        const CheckResult& result, std::span<const std::string> arguments) {
  if (flags.json) {
    const std::string command = absl::StrCat("selfsame check ", absl::StrJoin(arguments, " "));
    const std::string date = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
    RETURN_IF_ERROR(WriteTextFile(*flags.json, ToJson(result, command, date)));
  }
  if (!flags.save_reference) return absl::OkStatus();
  if (result.reference.empty()) {
    return UnavailableError("the reference was not saved, since one of its requests failed");
  }
  return WriteTextFile(*flags.save_reference,
                       SerializeReference({.fingerprint = result.fingerprint,
                                           .model = result.model,
                                           .cases = options.cases,
                                           .answers = result.reference,
                                           .ordinary_answers = result.ordinary_reference}));
}

int Judge(const CheckResult& result, bool require_control) {
  const PhaseFigures total = result.Total();
  if (total.deterministic.divergences > 0) {
    std::printf("FAILED: %lld of %lld deterministic answers changed\n",
                static_cast<long long>(total.deterministic.divergences),
                static_cast<long long>(total.deterministic.requests));
    return kExitDiverged;
  }
  if (total.deterministic.errors + total.ordinary.errors > 0) {
    std::printf("FAILED: requests failed, so that their answers were not compared\n");
    return kExitRequestFailed;
  }
  if (require_control && (total.ordinary.divergences == 0 || total.rollbacks == 0)) {
    std::printf("FAILED: %s, so that the run shows nothing\n",
                total.rollbacks == 0 ? "nothing was rolled back" : "no ordinary answer diverged");
    return kExitDiverged;
  }
  std::printf("No deterministic answer changed; %lld of %lld ordinary ones did.\n",
              static_cast<long long>(total.ordinary.divergences),
              static_cast<long long>(total.ordinary.requests));
  return kExitOk;
}

}  // namespace

int RunCheck(std::span<const std::string> arguments) {
  CheckFlags flags;
  FlagParser parser(
      "selfsame check [--flag=value ...]",
      "Sends a set of prompts, half greedy and half seeded, a quarter of them with penalties (and\n"
      "min-p where seeded), some with prompt logprobs, one at a time, and again under\n"
      "several concurrencies, orders and shares of ordinary requests. The token ids and the bits\n"
      "of the logprobs of each deterministic answer must be those of its one-at-a-time run; of\n"
      "ordinary answers, those whose tokens changed are counted, as a control.\n"
      "Exit status: 0 nothing changed, 1 a deterministic answer changed, 2 bad flags or a\n"
      "reference that cannot be compared, 3 a request failed.");
  AddFlags(parser, flags);
  if (const auto exit_status = ParseOrExit(parser, arguments)) return *exit_status;
  const absl::StatusOr<CheckOptions> options = ToOptions(flags);
  if (!options.ok()) return ReportError(options.status());
  const auto client = Connect(flags.connect);
  if (!client.ok()) return ReportError(client.status());

  const absl::StatusOr<CheckResult> result =
      RunCheckPhases(**client, *options,
                     [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); });
  if (!result.ok()) return ReportError(result.status());
  std::fputs(ToTable(*result).c_str(), stdout);
  std::fflush(stdout);
  const absl::Status written = WriteFiles(flags, *options, *result, arguments);
  const int verdict = Judge(*result, flags.require_control);
  if (!written.ok()) {
    const int write_exit = ReportError(written);
    return verdict == kExitOk ? write_exit : verdict;
  }
  return verdict;
}

}  // namespace selfsame::client
