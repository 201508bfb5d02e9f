#pragma once

namespace selfsame {

// Which order of reductions a backend uses.
enum class Schedule {
  // Whatever is fastest for this many rows, threads and keys; bits may change with the batch.
  kFast,
  // One fixed order: a row's result depends on that row's own tokens, position and the weights
  // only.
  kCanonical,
};

}  // namespace selfsame
