#pragma once

// What the services' mains share: checks of flag values and the last line of a failed start.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace selfsame {

// INVALID_ARGUMENT naming `flag` ("--threads") and both limits unless minimum <= value <= maximum.
absl::Status CheckFlagRange(std::string_view flag, int64_t value, int64_t minimum, int64_t maximum);

// The tokens a sequence may have, prompt and output together: `flag_value`, or when that is 0 the
// smaller of the model's own limit and kDefaultContextLimit. Decoder and verifier must agree on it,
// so both use this rule. INVALID_ARGUMENT when the flag is outside [2, model_limit].
absl::StatusOr<int32_t> ResolveContextLimit(int32_t flag_value, int64_t model_limit);

// Prints `PROGRAM: error: MESSAGE` as one line on standard error and returns the exit status 1.
int ReportFatal(std::string_view program, const absl::Status& status);

}  // namespace selfsame
