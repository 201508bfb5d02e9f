#pragma once

// Deterministic requests of a load and what was answered, so that verify_load can put the same work
// on a verifier with no decoder in between.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/serve/load_plan.h"
#include "bench/serve/load_report.h"

namespace selfsame::bench {

struct RecordedRequest {
  double arrival_s = 0.0;
  double first_token_s = 0.0;  // after the arrival
  double token_s = 0.0;        // between output tokens
  float temperature = 0.0f;
  uint64_t seed = 0;
  int32_t windows = 0;
  std::vector<int32_t> prompt_token_ids;
  std::vector<int32_t> output_token_ids;
};

// JSON, in order of arrival.
std::string WriteRecording(const std::vector<PlannedRequest>& plan, const LoadResult& result);

// INVALID_ARGUMENT for anything that WriteRecording does not write.
absl::StatusOr<std::vector<RecordedRequest>> ReadRecording(std::string_view text);

}  // namespace selfsame::bench
