#include "decoder/client/check_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace selfsame::client {
namespace {

using Json = nlohmann::ordered_json;

struct Spread {
  size_t min = 0;
  size_t median = 0;  // the lower one of an even count
};

std::optional<Spread> SpreadOf(std::vector<size_t> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  return Spread{values.front(), values[(values.size() - 1) / 2]};
}

Json SpreadToJson(const std::vector<size_t>& values) {
  const std::optional<Spread> spread = SpreadOf(values);
  if (!spread) return nullptr;
  return {{"min", spread->min}, {"median", spread->median}};
}

std::string PositionLine(const char* kind, const RequestFigures& figures) {
  const std::optional<Spread> spread = SpreadOf(figures.first_positions);
  if (!spread) return "";
  return absl::StrFormat("first divergent output position, %s: %d at the earliest, median %d\n",
                         kind, spread->min, spread->median);
}

void AppendRow(std::string& table, const PhaseFigures& phase) {
  absl::StrAppendFormat(&table, "%-27s %6d %9d %9d %9d %8d %10d %12d %11d %8d %10d %9.1f %8.1f\n",
                        phase.name, phase.deterministic.requests, phase.deterministic.divergences,
                        phase.ordinary.requests, phase.ordinary.divergences, phase.windows,
                        phase.rollbacks, phase.rolled_back_tokens, phase.redecoded_tokens,
                        phase.cached_prompt_tokens, phase.deterministic.output_tokens,
                        phase.tokens_per_second(), phase.seconds);
}

Json FiguresToJson(const PhaseFigures& phase) {
  return {{"deterministic_requests", phase.deterministic.requests},
          {"deterministic_divergences", phase.deterministic.divergences},
          {"ordinary_requests", phase.ordinary.requests},
          {"ordinary_divergences", phase.ordinary.divergences},
          {"ordinary_logprob_divergences", phase.ordinary.logprob_divergences},
          {"errors", phase.deterministic.errors + phase.ordinary.errors},
          {"windows", phase.windows},
          {"rollbacks", phase.rollbacks},
          {"rolled_back_tokens", phase.rolled_back_tokens},
          {"redecoded_tokens", phase.redecoded_tokens},
          {"cached_prompt_tokens", phase.cached_prompt_tokens},
          {"verifier_cached_prompt_tokens", phase.verifier_cached_prompt_tokens},
          {"committed_tokens", phase.deterministic.output_tokens},
          {"ordinary_tokens", phase.ordinary.output_tokens},
          {"first_divergent_position",
           {{"deterministic", SpreadToJson(phase.deterministic.first_positions)},
            {"ordinary", SpreadToJson(phase.ordinary.first_positions)}}},
          {"tokens_per_second", phase.tokens_per_second()},
          {"seconds", phase.seconds}};
}

}  // namespace

std::string ToTable(const CheckResult& result) {
  std::string table = absl::StrFormat("%-27s %6s %9s %9s %9s %8s %10s %12s %11s %8s %10s %9s %8s\n",
                                      "requests in flight", "determ.", "diverged", "ordinary",
                                      "diverged", "windows", "rollbacks", "rolled back",
                                      "re-decoded", "cached", "committed", "tokens/s", "seconds");
  for (const PhaseFigures& phase : result.phases) AppendRow(table, phase);
  const PhaseFigures total = result.Total();
  AppendRow(table, total);
  absl::StrAppend(&table, PositionLine("deterministic", total.deterministic),
                  PositionLine("ordinary", total.ordinary));
  const int64_t errors = total.deterministic.errors + total.ordinary.errors;
  if (errors > 0) absl::StrAppend(&table, errors, " requests failed\n");
  absl::StrAppend(&table, "model       ", result.model, "\nfingerprint ", result.fingerprint, "\n");
  return table;
}

std::string ToJson(const CheckResult& result, const std::string& command_line,
                   const std::string& date) {
  Json json = FiguresToJson(result.Total());
  json["fingerprint"] = result.fingerprint;
  json["model"] = result.model;
  json["command"] = command_line;
  json["date"] = date;
  json["phases"] = Json::array();
  for (const PhaseFigures& phase : result.phases) {
    Json figures = {{"name", phase.name},
                    {"concurrency", phase.concurrency},
                    {"ordinary_share", phase.ordinary_share}};
    figures.update(FiguresToJson(phase));
    json["phases"].push_back(std::move(figures));
  }
  // A command line may hold any bytes.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace selfsame::client
