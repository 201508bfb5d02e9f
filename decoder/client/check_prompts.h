#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace selfsame::client {

// The prompts `selfsame check` sends when it is given none.
std::vector<std::string> BuiltInPrompts();

// One prompt a line; empty lines are left out. FileError when it cannot be read or holds none.
absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path);

}  // namespace selfsame::client
