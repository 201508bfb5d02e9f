#include "bench/serve/load_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace selfsame::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMilliseconds = 1e3;

// Figures of the requests of one kind.
struct Summary {
  int64_t requests = 0;
  int64_t output_tokens = 0;
  int64_t windows = 0;
  int64_t rollbacks = 0;
  int64_t rolled_back_tokens = 0;
  int64_t redecoded_tokens = 0;
  int64_t cached_prompt_tokens = 0;
  int64_t verifier_cached_prompt_tokens = 0;
  std::vector<double> first_token_ms;
  std::vector<double> per_token_ms;
  std::vector<double> total_ms;
};

template <typename Keep>
Summary Summarise(const LoadResult& result, Keep keep) {
  Summary summary;
  for (const LoadSample& sample : result.samples) {
    if (!keep(sample)) continue;
    ++summary.requests;
    summary.output_tokens += sample.output_tokens;
    summary.windows += sample.windows;
    summary.rollbacks += sample.rollbacks;
    summary.rolled_back_tokens += sample.rolled_back_tokens;
    summary.redecoded_tokens += sample.redecoded_tokens;
    summary.cached_prompt_tokens += sample.cached_prompt_tokens;
    summary.verifier_cached_prompt_tokens += sample.verifier_cached_prompt_tokens;
    summary.first_token_ms.push_back(sample.seconds_to_first_token * kMilliseconds);
    summary.total_ms.push_back(sample.seconds_in_all * kMilliseconds);
    if (sample.output_tokens > 1) {
      summary.per_token_ms.push_back(sample.seconds_per_output_token * kMilliseconds);
    }
  }
  return summary;
}

Summary Deterministic(const LoadResult& result) {
  return Summarise(result, [](const LoadSample& sample) { return sample.is_deterministic; });
}
Summary Ordinary(const LoadResult& result) {
  return Summarise(result, [](const LoadSample& sample) { return !sample.is_deterministic; });
}
Summary All(const LoadResult& result) {
  return Summarise(result, [](const LoadSample&) { return true; });
}

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

Json PercentilesToJson(const std::vector<double>& values) {
  return {{"p50", Percentile(values, 50)}, {"p99", Percentile(values, 99)}};
}

Json SummaryToJson(const Summary& summary, double seconds) {
  return {{"requests", summary.requests},
          {"output_tokens", summary.output_tokens},
          {"requests_per_second", PerSecond(summary.requests, seconds)},
          {"output_tokens_per_second", PerSecond(summary.output_tokens, seconds)},
          {"time_to_first_token_ms", PercentilesToJson(summary.first_token_ms)},
          {"time_per_output_token_ms", PercentilesToJson(summary.per_token_ms)},
          {"request_ms", PercentilesToJson(summary.total_ms)},
          {"windows", summary.windows},
          {"rollbacks", summary.rollbacks},
          {"rolled_back_tokens", summary.rolled_back_tokens},
          {"redecoded_tokens", summary.redecoded_tokens},
          {"cached_prompt_tokens", summary.cached_prompt_tokens},
          {"verifier_cached_prompt_tokens", summary.verifier_cached_prompt_tokens}};
}

void AppendRow(std::string& table, const char* name, const Summary& summary, double seconds) {
  absl::StrAppendFormat(
      &table, "%-14s %8d %9d %9.1f %9.1f %9.1f %9.2f %9.2f %8d %9d %11d %10d %8d\n", name,
      summary.requests, summary.output_tokens, PerSecond(summary.output_tokens, seconds),
      Percentile(summary.first_token_ms, 50), Percentile(summary.first_token_ms, 99),
      Percentile(summary.per_token_ms, 50), Percentile(summary.per_token_ms, 99), summary.windows,
      summary.rollbacks, summary.rolled_back_tokens, summary.redecoded_tokens,
      summary.cached_prompt_tokens);
}

}  // namespace

LoadSample ToSample(const client::Answer& answer, bool is_deterministic,
                    client::SteadyTime arrival) {
  const auto seconds = [](client::SteadyTime::duration duration) {
    return std::chrono::duration<double>(duration).count();
  };
  LoadSample sample;
  sample.is_deterministic = is_deterministic;
  sample.seconds_to_first_token = seconds(answer.first_token - arrival);
  sample.seconds_in_all = seconds(answer.last_token - arrival);
  sample.output_tokens = static_cast<int32_t>(answer.token_ids.size());
  if (sample.output_tokens > 1) {
    sample.seconds_per_output_token =
        seconds(answer.last_token - answer.first_token) / (sample.output_tokens - 1);
  }
  sample.windows = answer.windows;
  sample.rollbacks = answer.rollbacks;
  sample.rolled_back_tokens = answer.rolled_back_tokens;
  sample.redecoded_tokens = answer.redecoded_tokens;
  sample.cached_prompt_tokens = answer.cached_prompt_tokens;
  sample.verifier_cached_prompt_tokens = answer.verifier_cached_prompt_tokens;
  return sample;
}

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(percent / 100.0 * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

std::string ToTable(const LoadResult& result) {
  std::string table = absl::StrFormat(
      "%-14s %8s %9s %9s %19s %19s %8s %9s %11s %10s %8s\n%-14s %8s %9s %9s %9s %9s %9s %9s\n", "",
      "", "output", "tokens", "first token, ms", "a token, ms", "", "", "rolled", "re-", "", "",
      "requests", "tokens", "a second", "P50", "P99", "P50", "P99");
  table.pop_back();
  absl::StrAppendFormat(&table, " %8s %9s %11s %10s %8s\n", "windows", "rollbacks", "back",
                        "decoded", "cached");
  AppendRow(table, "deterministic", Deterministic(result), result.seconds);
  AppendRow(table, "ordinary", Ordinary(result), result.seconds);
  AppendRow(table, "all", All(result), result.seconds);
  absl::StrAppendFormat(&table, "%.1f s, %.2f requests a second, %d cancelled, %d failed\n",
                        result.seconds,
                        PerSecond(static_cast<int64_t>(result.samples.size()), result.seconds),
                        result.cancelled, result.errors);
  return table;
}

std::string ToJson(const LoadResult& result, const std::string& command_line,
                   const std::string& date) {
  const Json json = {{"command", command_line},
                     {"date", date},
                     {"seconds", result.seconds},
                     {"errors", result.errors},
                     {"cancelled", result.cancelled},
                     {"all", SummaryToJson(All(result), result.seconds)},
                     {"deterministic", SummaryToJson(Deterministic(result), result.seconds)},
                     {"ordinary", SummaryToJson(Ordinary(result), result.seconds)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace selfsame::bench
