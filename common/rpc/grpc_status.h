#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace selfsame {

// The one conversion of our errors to gRPC's. Details become google.rpc messages in
// grpc-status-details-bin: the field at fault a BadRequest, a retry hint a RetryInfo.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The way back, for our own clients: code, message, field and retry hint.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace selfsame
