#pragma once

#include "absl/status/statusor.h"

namespace selfsame::bench {

// How fast `thread_count` threads together read memory that no cache holds, in bytes per second:
// the fastest of several passes over 1 GiB of huge pages.
absl::StatusOr<double> MeasureReadBandwidth(int thread_count);

}  // namespace selfsame::bench
