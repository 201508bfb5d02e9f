#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace selfsame::testing {

// The body of `path` at `address`, "127.0.0.1:PORT". An error when nobody answers with status 200
// within ten seconds.
absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path);

}  // namespace selfsame::testing
