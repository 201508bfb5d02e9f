#pragma once

#include <string>

#include "absl/status/status.h"

namespace selfsame::client {

// Replaces or creates the file.
absl::Status WriteTextFile(const std::string& path, const std::string& content);

}  // namespace selfsame::client
