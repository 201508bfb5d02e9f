#include "kernels/cuda/sample_buffers.h"

#include <vector>

#include "gtest/gtest.h"

namespace selfsame::cuda {
namespace {

TEST(SampleBuffersTest, CountsTheRowsWhoseEditsFitTogether) {
  const std::vector<LogitEdit> edits(SampleBuffers::kMaxEdits);
  const std::span<const LogitEdit> all = edits;
  const auto half = all.first(all.size() / 2);
  const std::vector<SampleRow> rows = {
      {}, {.edits = half}, {.edits = half}, {}, {.edits = all.first(1)}, {.edits = all}, {}};
  const auto from = [&rows](size_t first) {
    return SampleBuffers::CountFitting(std::span(rows).subspan(first));
  };
  EXPECT_EQ(from(0), 4u);
  EXPECT_EQ(from(2), 3u);
  EXPECT_EQ(from(4), 1u);
  EXPECT_EQ(from(5), 2u);
  EXPECT_EQ(from(7), 0u);
}

}  // namespace
}  // namespace selfsame::cuda
