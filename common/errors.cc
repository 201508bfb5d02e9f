#include "common/errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace selfsame {
namespace {

constexpr char kFieldPayload[] = "selfsame/field";
constexpr char kRetryPayload[] = "selfsame/retry_after_ms";

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status InvalidArgumentError(std::string_view field, std::string_view message) {
  absl::Status status =
      absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": ", ToAbsl(message)));
  SetField(status, field);
  return status;
}

absl::Status NotFoundError(std::string_view what) { return absl::NotFoundError(ToAbsl(what)); }

absl::Status ResourceExhaustedError(std::string_view what, int64_t retry_after_ms) {
  absl::Status status = absl::ResourceExhaustedError(ToAbsl(what));
  SetRetryAfterMs(status, retry_after_ms);
  return status;
}

absl::Status FailedPreconditionError(std::string_view what) {
  return absl::FailedPreconditionError(ToAbsl(what));
}

absl::Status DeadlineExceededError(std::string_view what) {
  return absl::DeadlineExceededError(ToAbsl(what));
}

absl::Status CancelledError(std::string_view what) { return absl::CancelledError(ToAbsl(what)); }

absl::Status UnavailableError(std::string_view what) {
  return absl::UnavailableError(ToAbsl(what));
}

absl::Status UnimplementedError(std::string_view what) {
  return absl::UnimplementedError(ToAbsl(what));
}

absl::Status FileError(std::string_view path, std::string_view message) {
  return absl::FailedPreconditionError(absl::StrCat(ToAbsl(path), ": ", ToAbsl(message)));
}

absl::Status InternalError(std::string_view what) { return absl::InternalError(ToAbsl(what)); }

std::optional<std::string> FieldOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kFieldPayload);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

std::optional<int64_t> RetryAfterMsOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryPayload);
  int64_t retry_after_ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &retry_after_ms)) {
    return std::nullopt;
  }
  return retry_after_ms;
}

void SetField(absl::Status& status, std::string_view field) {
  status.SetPayload(kFieldPayload, absl::Cord(ToAbsl(field)));
}

void SetRetryAfterMs(absl::Status& status, int64_t retry_after_ms) {
  status.SetPayload(kRetryPayload, absl::Cord(absl::StrCat(retry_after_ms)));
}

}  // namespace selfsame
