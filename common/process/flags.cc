#include "common/process/flags.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"

namespace selfsame {

absl::Status CheckFlagRange(std::string_view flag, int64_t value, int64_t minimum,
                            int64_t maximum) {
  if (value >= minimum && value <= maximum) return absl::OkStatus();
  return InvalidArgumentError(
      flag, absl::StrCat("must be between ", minimum, " and ", maximum, ", not ", value));
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
