#include "bench/serve/load_plan.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"
#include "decoder/client/counter_random.h"

namespace selfsame::bench {
namespace {

int32_t Draw(client::CounterRandom& random, const Range& range) {
  return range.minimum + static_cast<int32_t>(random.Below(range.maximum - range.minimum + 1));
}

}  // namespace

absl::StatusOr<Range> ParseRange(std::string_view flag, std::string_view text) {
  const absl::string_view whole(text.data(), text.size());
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(whole, absl::MaxSplits(':', 1));
  Range range;
  const bool has_maximum = whole.find(':') != whole.npos;
  const absl::string_view maximum = has_maximum ? parts.second : parts.first;
  if (!absl::SimpleAtoi(parts.first, &range.minimum) ||
      !absl::SimpleAtoi(maximum, &range.maximum) || range.minimum < 1 ||
      range.maximum < range.minimum) {
    return InvalidArgumentError(
        flag, absl::StrCat("must be COUNT or MINIMUM:MAXIMUM, each at least 1, not '", whole, "'"));
  }
  return range;
}

std::vector<PlannedRequest> PlanLoad(const LoadOptions& options) {
  client::CounterRandom random(options.seed);
  std::vector<PlannedRequest> plan(options.requests);
  double arrival_s = 0.0;
  for (PlannedRequest& planned : plan) {
    if (options.rate > 0) arrival_s += random.Exponential(options.rate);
    planned.arrival_s = arrival_s;
    client::Request& request = planned.request;
    request.is_deterministic = random.Fraction() < options.deterministic_share;
    std::vector<int32_t> prompt(Draw(random, options.prompt_tokens));
    for (int32_t& token : prompt) token = static_cast<int32_t>(random.Below(options.vocab_size));
    request.input = std::move(prompt);
    request.max_tokens = Draw(random, options.output_tokens);
    request.temperature = static_cast<float>(options.temperature);
    request.seed = random.Next();
    request.ignore_eos = true;  // so that the lengths are those asked for
    if (options.cancel_share > 0 && random.Fraction() < options.cancel_share) {
      request.cancel_after_tokens = static_cast<int32_t>(random.Below(*request.max_tokens));
    }
  }
  return plan;
}

}  // namespace selfsame::bench
