#include "common/rpc/grpc_status.h"

#include <gtest/gtest.h>

#include "common/errors.h"
#include "google/rpc/error.pb.h"

namespace selfsame {
namespace {

TEST(GrpcStatusTest, FieldBecomesABadRequest) {
  const grpc::Status status = ToGrpcStatus(InvalidArgumentError("stop.max_tokens", "is 0"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::BadRequest bad_request;
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&bad_request));
  EXPECT_EQ(bad_request.field_violations(0).field(), "stop.max_tokens");
}

TEST(GrpcStatusTest, DetailsSurviveTheWayThereAndBack) {
  const absl::Status full = FromGrpcStatus(ToGrpcStatus(ResourceExhaustedError("full", 1250)));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "full");
  EXPECT_EQ(RetryAfterMsOf(full), 1250);
  const absl::Status bad = FromGrpcStatus(ToGrpcStatus(InvalidArgumentError("prompt", "empty")));
  EXPECT_EQ(FieldOf(bad), "prompt");
}

TEST(GrpcStatusTest, PlainStatusesHaveNoDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(ToGrpcStatus(UnavailableError("gone")).error_details().empty());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

}  // namespace
}  // namespace selfsame
