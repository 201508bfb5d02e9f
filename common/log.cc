#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace selfsame {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void InitLogging(std::string_view service, LogLevel level) {
  auto logger = spdlog::stderr_logger_mt(std::string(service));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %n %l %v");
  logger->set_level(ToSpdlog(level));
  spdlog::set_default_logger(std::move(logger));
}

void LogLine(LogLevel level, std::string_view message) {
  spdlog::log(ToSpdlog(level), "{}", spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace selfsame
