#pragma once

// Runs GEMM algorithms on probe data: times them and compares their bits.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_probe.h"

namespace selfsame::cuda {

// Buffers for one shape and up to `max_rows` rows. An algorithm that cannot run is an answer, as is
// a split one for which the launcher has no room; a device error is a status.
class GemmBench {
 public:
  // REQUIRES: max_rows >= kProbeRows; `launcher` outlives the bench.
  static absl::StatusOr<GemmBench> Create(const GemmLauncher& launcher, const GemmShape& shape,
                                          int32_t max_rows);

  // The class of an algorithm that gives every probe row the same bits in all slots, however
  // shifted and beside NaN; nothing when it does not, or does not run. Unknown bits found at
  // kProbeRows rows or more make a new class, up to kMaxClasses.
  absl::StatusOr<std::optional<int>> Classify(const GemmAlgorithm& algorithm, int32_t rows);
  absl::StatusOr<bool> IsMember(const GemmAlgorithm& algorithm, int32_t rows, int class_index);

  // Microseconds of one product by each algorithm, the weights coming from memory, not from the
  // cache; nothing for those that do not take these rows. They run in turn, several times, so that
  // the device's clocks favour none of them.
  absl::StatusOr<std::vector<std::optional<float>>> Time(std::span<const GemmAlgorithm> algorithms,
                                                         int32_t rows);

  // Whether it runs at each of these row counts; those below 1 are left out.
  absl::StatusOr<bool> Runs(const GemmAlgorithm& algorithm,
                            std::initializer_list<int32_t> row_counts);

  const GemmShape& shape() const { return shape_; }

 private:
  GemmBench(const GemmLauncher& launcher, const GemmShape& shape)
      : launcher_(launcher), shape_(shape) {}
  GemmOperands Operands(bool is_shifted, int64_t copy = 0) const;
  void* Reference(int class_index) const;
  // Runs once over poisoned output. False: the algorithm does not take these rows.
  absl::StatusOr<bool> RunProbe(const GemmAlgorithm& algorithm, int32_t rows, bool is_shifted);
  // Bit i: the latest output agrees with reference i of classes [0, class_count).
  absl::StatusOr<uint32_t> Agreement(int32_t rows, bool is_shifted, int class_count);

  const GemmLauncher& launcher_;
  GemmShape shape_;
  int64_t weight_copies_ = 1;
  int class_count_ = 0;
  Memory weights_;     // [weight_copies, n, k]
  Memory rows_;        // [max_rows, k]
  Memory shifted_;     // [max_rows, k], shifted and poisoned
  Memory output_;      // [max_rows, n]
  Memory bias_;        // [n]
  Memory references_;  // [kMaxClasses, kProbeRows, n]
  Memory mismatches_;  // [kMaxClasses] uint32
};

}  // namespace selfsame::cuda
