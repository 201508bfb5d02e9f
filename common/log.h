#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace selfsame {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets what is printed to standard error; called once by main before any thread starts. `service`
// is the first word of every line.
void InitLogging(std::string_view service, LogLevel level);

// Prints one line. Safe from any thread; not for the per-token path.
void LogLine(LogLevel level, std::string_view message);

template <typename... Args>
void LogInfo(const Args&... args) {
  LogLine(LogLevel::kInfo, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(const Args&... args) {
  LogLine(LogLevel::kWarning, absl::StrCat(args...));
}
template <typename... Args>
void LogError(const Args&... args) {
  LogLine(LogLevel::kError, absl::StrCat(args...));
}

}  // namespace selfsame
