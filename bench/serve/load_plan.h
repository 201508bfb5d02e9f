#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "decoder/client/inference_api.h"

namespace selfsame::bench {

// A uniform choice from minimum to maximum, both included.
struct Range {
  int32_t minimum = 0;
  int32_t maximum = 0;
};

// "128" or "64:256", both at least 1. INVALID_ARGUMENT names `flag`.
absl::StatusOr<Range> ParseRange(std::string_view flag, std::string_view text);

struct LoadOptions {
  int32_t requests = 64;
  // Requests a second, with arrivals of a Poisson process. 0: closed loop, a new request as soon as
  // one ends.
  double rate = 0.0;
  double deterministic_share = 0.5;
  double cancel_share = 0.0;  // of requests that are cancelled before or while they generate
  Range prompt_tokens{128, 128};
  Range output_tokens{128, 128};
  double temperature = 0.0;
  int32_t vocab_size = 0;  // prompts are random token ids below it
  uint64_t seed = 1;
};

struct PlannedRequest {
  double arrival_s = 0.0;  // after the start; 0 in a closed loop
  client::Request request;
};

// The whole load, in order of arrival; a function of the options alone.
std::vector<PlannedRequest> PlanLoad(const LoadOptions& options);

}  // namespace selfsame::bench
