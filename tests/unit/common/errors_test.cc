#include "common/errors.h"

#include <gtest/gtest.h>

namespace selfsame {
namespace {

TEST(ErrorsTest, InvalidArgumentNamesItsField) {
  const absl::Status status = InvalidArgumentError("sampling.top_p", "must be in (0, 1]");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "sampling.top_p: must be in (0, 1]");
  EXPECT_EQ(FieldOf(status), "sampling.top_p");
  EXPECT_EQ(RetryAfterMsOf(status), std::nullopt);
}

TEST(ErrorsTest, ResourceExhaustedCarriesARetryHint) {
  const absl::Status status = ResourceExhaustedError("the queue is full", 250);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfterMsOf(status), 250);
  EXPECT_EQ(FieldOf(status), std::nullopt);
}

TEST(ErrorsTest, FileErrorNamesTheFile) {
  const absl::Status status = FileError("/models/x/config.json", "is missing");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "/models/x/config.json: is missing");
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgumentError("value", "must be even");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(ErrorsTest, MacrosReturnTheFirstError) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_FALSE(Quarter(6).ok());
  EXPECT_FALSE(Quarter(3).ok());
}

}  // namespace
}  // namespace selfsame
