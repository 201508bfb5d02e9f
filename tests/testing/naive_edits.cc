#include "tests/testing/naive_edits.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace selfsame::testing {

std::vector<LogitEdit> NaiveEdits(const LogitRules& rules, std::span<const int32_t> prompt,
                                  std::span<const int32_t> output,
                                  std::span<const int32_t> stop_token_ids) {
  std::map<int32_t, int> counts;
  for (const int32_t token_id : output) ++counts[token_id];
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  seen.insert(output.begin(), output.end());

  std::map<int32_t, LogitEdit> edits;
  for (const int32_t token_id : seen) edits[token_id].repetition = rules.repetition_penalty;
  for (const auto& [token_id, count] : counts) {
    edits[token_id].penalty = static_cast<float>(rules.frequency_penalty * double(count) +
                                                 double(rules.presence_penalty));
  }
  for (const LogitBias& entry : rules.logit_bias) edits[entry.token_id].bias = entry.bias;
  if (static_cast<int32_t>(output.size()) < rules.min_tokens) {
    for (const int32_t token_id : stop_token_ids) {
      edits[token_id].bias = -std::numeric_limits<float>::infinity();
    }
  }
  std::vector<LogitEdit> list;
  for (auto& [token_id, edit] : edits) {
    if (edit == LogitEdit()) continue;
    edit.token_id = token_id;
    list.push_back(edit);
  }
  return list;
}

std::vector<LogitEdit> SortedEdits(std::span<const LogitEdit> edits) {
  std::vector<LogitEdit> sorted(edits.begin(), edits.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const LogitEdit& a, const LogitEdit& b) { return a.token_id < b.token_id; });
  return sorted;
}

}  // namespace selfsame::testing
