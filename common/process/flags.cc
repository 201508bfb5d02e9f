#include "common/process/flags.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "common/limits.h"

namespace selfsame {
namespace {

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// Both comparisons are false for NaN.
template <typename Number>
absl::Status CheckRange(std::string_view flag, Number value, Number minimum, Number maximum) {
  if (value >= minimum && value <= maximum) return absl::OkStatus();
  return InvalidArgumentError(
      flag, absl::StrCat("must be between ", minimum, " and ", maximum, ", not ", value));
}

}  // namespace

absl::Status CheckFlagRange(std::string_view flag, int64_t value, int64_t minimum,
                            int64_t maximum) {
  return CheckRange(flag, value, minimum, maximum);
}

absl::Status CheckRealFlagRange(std::string_view flag, double value, double minimum,
                                double maximum) {
  return CheckRange(flag, value, minimum, maximum);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view flag, std::string_view value,
                                       int minimum_port) {
  const size_t colon = value.rfind(':');
  HostPort result;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(ToAbsl(value.substr(colon + 1)), &result.port) ||
      result.port < minimum_port || result.port > 65535) {
    return InvalidArgumentError(
        flag, absl::StrCat("must be HOST:PORT with a port from ", minimum_port, " to 65535, not \"",
                           ToAbsl(value), "\""));
  }
  result.host = std::string(value.substr(0, colon));
  return result;
}

absl::StatusOr<int32_t> KvBlockCount(int32_t size_mb, int64_t block_bytes, int32_t context_limit) {
  const int64_t needed = BlocksFor(context_limit);
  const int64_t count = (int64_t{size_mb} << 20) / block_bytes;
  if (count < needed) {
    return InvalidArgumentError(
        "--kv_size_mb",
        absl::StrCat("must be at least ", ((needed * block_bytes - 1) >> 20) + 1,
                     " for one sequence of ", context_limit, " tokens, not ", size_mb));
  }
  return static_cast<int32_t>(std::min<int64_t>(count, std::numeric_limits<int32_t>::max()));
}

absl::StatusOr<int32_t> ResolveContextLimit(int32_t flag_value, int64_t model_limit) {
  if (flag_value == 0) {
    return static_cast<int32_t>(std::min<int64_t>(model_limit, kDefaultContextLimit));
  }
  RETURN_IF_ERROR(CheckFlagRange("--context_limit", flag_value, 2, model_limit));
  return flag_value;
}

int ReportFatal(std::string_view program, const absl::Status& status) {
  std::string message(status.message());
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "%.*s: error: %s\n", static_cast<int>(program.size()), program.data(),
               message.c_str());
  return 1;
}

}  // namespace selfsame
