#pragma once

#include <span>
#include <string>

// The commands of `selfsame`. Each takes the arguments after its name and returns the process's
// exit status.
namespace selfsame::client {

inline constexpr int kExitOk = 0;
inline constexpr int kExitDiverged = 1;       // check: an answer changed, or the run had no power
inline constexpr int kExitUsage = 2;          // bad flags or files, another fingerprint
inline constexpr int kExitRequestFailed = 3;  // server unreachable, or a request failed

int RunGenerate(std::span<const std::string> arguments);
int RunChat(std::span<const std::string> arguments);
int RunInfo(std::span<const std::string> arguments);
int RunCheck(std::span<const std::string> arguments);

}  // namespace selfsame::client
