#include "tests/integration/metrics_reader.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/http_get.h"

namespace selfsame::testing {
namespace {

constexpr char kMetricsOn[] = "metrics on ";

}  // namespace

std::string MetricsAddress(ChildProcess& process) {
  const auto line = process.ReadLine();
  EXPECT_TRUE(line.ok() && absl::StartsWith(*line, kMetricsOn)) << line.status();
  return line.ok() ? line->substr(sizeof(kMetricsOn) - 1) : "";
}

double ReadMetric(const std::string& address, const std::string& name, const std::string& label) {
  const auto body = HttpGet(address, "/metrics");
  if (!body.ok()) return -1;
  double sum = 0;
  bool is_found = false;
  for (const absl::string_view line : absl::StrSplit(*body, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    const bool is_named = words[0] == name || absl::StartsWith(words[0], name + "{");
    double value = 0;
    if (words.size() < 2 || !is_named || !absl::StrContains(words[0], label)) continue;
    if (!absl::SimpleAtod(words[1], &value)) continue;
    sum += value;
    is_found = true;
  }
  return is_found ? sum : -1;
}

}  // namespace selfsame::testing
