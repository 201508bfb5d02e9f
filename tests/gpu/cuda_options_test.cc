// What CreateCudaOps refuses before it looks for a device.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_ops.h"

namespace selfsame {
namespace {

using ::testing::HasSubstr;

absl::Status Create(const CudaOptions& options) { return CreateCudaOps(options).status(); }

TEST(CudaOptionsTest, BlockTablesThatNoIndexReachesAreRefused) {
  const absl::Status status = Create({.max_table_entries = kMaxTableEntries + 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1073741825"));
}

TEST(CudaOptionsTest, APassHasRows) {
  EXPECT_EQ(Create({.max_rows = 0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Create({.max_logit_rows = 0}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CudaOptionsTest, AnAttentionWithoutAKernelIsRefusedBeforeWeightsAreLoaded) {
  for (const AttentionShape& shape :
       {AttentionShape{.head_count = 8, .kv_head_count = 2, .head_dim = 96},
        AttentionShape{.head_count = 130, .kv_head_count = 2, .head_dim = 128}}) {
    const absl::Status status = Create({.attention_shape = shape});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("64 or 128 dimensions"));
  }
}

}  // namespace
}  // namespace selfsame
