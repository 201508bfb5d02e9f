#include "common/rpc/grpc_status.h"

#include <string>

#include "common/errors.h"
#include "google/rpc/error.pb.h"

namespace selfsame {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message(status.message());
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  if (const auto field = FieldOf(status)) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(*field);
    violation->set_description(message);
    details.add_details()->PackFrom(bad_request);
  }
  if (const auto retry_after_ms = RetryAfterMsOf(status)) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(*retry_after_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(*retry_after_ms % 1000 * 1000 * 1000));
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      details.details_size() > 0 ? details.SerializeAsString() : std::string());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return result;
  for (const auto& detail : details.details()) {
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&bad_request) && bad_request.field_violations_size() > 0) {
      SetField(result, bad_request.field_violations(0).field());
    } else if (detail.UnpackTo(&retry)) {
      SetRetryAfterMs(result, retry.retry_delay().seconds() * 1000 +
                                  retry.retry_delay().nanos() / (1000 * 1000));
    }
  }
  return result;
}

}  // namespace selfsame
