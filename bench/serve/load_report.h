#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decoder/client/inference_api.h"

namespace selfsame::bench {

// One request that ended well.
struct LoadSample {
  bool is_deterministic = false;
  double seconds_to_first_token = 0.0;  // since its arrival, time spent waiting to be sent included
  double seconds_in_all = 0.0;
  double seconds_per_output_token = 0.0;  // after the first; 0 for a single token
  int32_t output_tokens = 0;
  int32_t windows = 0;
  int32_t rollbacks = 0;
  int32_t rolled_back_tokens = 0;
  int32_t redecoded_tokens = 0;
  int32_t cached_prompt_tokens = 0;  // found in the decoder's prefix cache
  int32_t verifier_cached_prompt_tokens = 0;
  size_t plan_index = 0;
  std::vector<int32_t> token_ids = {};
};

LoadSample ToSample(const client::Answer& answer, bool is_deterministic,
                    client::SteadyTime arrival);

struct LoadResult {
  std::vector<LoadSample> samples;
  int64_t errors = 0;
  int64_t cancelled = 0;  // as planned
  double seconds = 0.0;
};

// The smallest value that at least `percent` of the values do not exceed; 0 when there are none.
double Percentile(std::vector<double> values, double percent);

std::string ToTable(const LoadResult& result);

// The same figures. `command_line` and `date` say where they come from.
std::string ToJson(const LoadResult& result, const std::string& command_line,
                   const std::string& date);

}  // namespace selfsame::bench
