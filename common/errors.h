#pragma once

// Every error the project reports is made by one of these constructors, so that one failure has one
// wording and one status code. A status may carry details (the field at fault, a retry hint); the
// gRPC edge turns them into google.rpc messages (common/rpc/grpc_status.h).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace selfsame {

// Client input that breaks a limit or a format. `field` names the request field or flag, `message`
// says what is wrong and what the limit is.
absl::Status InvalidArgumentError(std::string_view field, std::string_view message);

// Something named by the client does not exist.
absl::Status NotFoundError(std::string_view what);

// A bounded queue or memory is full; the client may try again after `retry_after_ms`.
absl::Status ResourceExhaustedError(std::string_view what, int64_t retry_after_ms);

// The request is well formed but this server cannot serve it as it is set up.
absl::Status FailedPreconditionError(std::string_view what);

absl::Status DeadlineExceededError(std::string_view what);
absl::Status CancelledError(std::string_view what);
absl::Status UnavailableError(std::string_view what);
absl::Status UnimplementedError(std::string_view what);

// A file on disk that is missing, truncated or malformed. `path` is named in the message.
absl::Status FileError(std::string_view path, std::string_view message);

// A broken promise between our own parts that must not end the process.
absl::Status InternalError(std::string_view what);

// Details attached by the constructors above; empty when absent.
std::optional<std::string> FieldOf(const absl::Status& status);
std::optional<int64_t> RetryAfterMsOf(const absl::Status& status);

// Attaches such a detail to an error that came from elsewhere.
void SetField(absl::Status& status, std::string_view field);
void SetRetryAfterMs(absl::Status& status, int64_t retry_after_ms);

}  // namespace selfsame

// Early return on error. Abseil 20220623 has no status macros.
#define SELFSAME_CONCAT_INNER(a, b) a##b
#define SELFSAME_CONCAT(a, b) SELFSAME_CONCAT_INNER(a, b)
#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(SELFSAME_CONCAT(status_or_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(holder, declaration, expression) \
  auto holder = (expression);                                  \
  if (!holder.ok()) return holder.status();                    \
  declaration = *std::move(holder)
