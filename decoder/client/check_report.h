#pragma once

#include <string>

#include "decoder/client/check_run.h"

namespace selfsame::client {

// A row a phase and one of totals, then the first divergent positions.
std::string ToTable(const CheckResult& result);

// The same figures. `command_line` and `date` say where they come from.
std::string ToJson(const CheckResult& result, const std::string& command_line,
                   const std::string& date);

}  // namespace selfsame::client
