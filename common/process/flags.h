#pragma once

// What the services' mains share: checks of flag values and the last line of a failed start.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace selfsame {

// INVALID_ARGUMENT naming `flag` ("--threads") and both limits unless minimum <= value <= maximum.
absl::Status CheckFlagRange(std::string_view flag, int64_t value, int64_t minimum, int64_t maximum);

// The same for a real number; NaN is refused.
absl::Status CheckRealFlagRange(std::string_view flag, double value, double minimum,
                                double maximum);

struct HostPort {
  std::string host;  // an IPv6 address keeps its brackets
  int port = 0;
};

// Cuts HOST:PORT at the last colon. INVALID_ARGUMENT naming `flag` when either half is missing or
// the port is not a number from `minimum_port` to 65535.
absl::StatusOr<HostPort> ParseHostPort(std::string_view flag, std::string_view value,
                                       int minimum_port);

// Blocks of a KV cache of `size_mb` MiB. INVALID_ARGUMENT naming --kv_size_mb when that does not
// hold one sequence of `context_limit` tokens.
absl::StatusOr<int32_t> KvBlockCount(int32_t size_mb, int64_t block_bytes, int32_t context_limit);

// The tokens a sequence may have, prompt and output together: `flag_value`, or when that is 0 the
// smaller of the model's own limit and kDefaultContextLimit. Decoder and verifier must agree on it,
// so both use this rule. INVALID_ARGUMENT when the flag is outside [2, model_limit].
absl::StatusOr<int32_t> ResolveContextLimit(int32_t flag_value, int64_t model_limit);

// Prints `PROGRAM: error: MESSAGE` as one line on standard error and returns the exit status 1.
int ReportFatal(std::string_view program, const absl::Status& status);

}  // namespace selfsame
