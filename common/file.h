#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace selfsame {

// The whole of a regular file of at most `max_size_bytes`. FileError when it is missing, is not a
// regular file, is larger or cannot be read.
absl::StatusOr<std::string> ReadFile(std::string_view path, int64_t max_size_bytes);

// True when `path` names something that exists, a dangling link included.
bool PathExists(std::string_view path);

// DIR/NAME.
std::string JoinPath(std::string_view directory, std::string_view name);

}  // namespace selfsame
