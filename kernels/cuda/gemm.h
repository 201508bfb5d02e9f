#pragma once

// Matrix products y = x · Wᵀ + bias, by cuBLASLt or by stream_gemm.h for few rows: bf16 operands,
// float accumulation. x: [rows, k], W: [n, k], y: [rows, n], bias: [n], all row-major and
// contiguous.
//
// A product may be split: k is cut into equal slices, the products of the slices are made apart, in
// float, and split_sum.h adds them in increasing order, then the bias, and rounds once.

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/split_sum.h"

namespace selfsame::cuda {

enum class GemmOutput { kBFloat16, kFloat };

struct GemmShape {
  int64_t n = 0;
  int64_t k = 0;
  GemmOutput output = GemmOutput::kBFloat16;
  bool has_bias = false;  // added in float, before rounding
  auto operator<=>(const GemmShape&) const = default;

  size_t output_element_bytes() const { return output == GemmOutput::kFloat ? 4 : 2; }
};

// One of cuBLASLt's algorithms, or a configuration of stream_gemm.h.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t blas = {};  // of all slices together
  int32_t stream_config = -1;      // -1: `blas`
  int32_t splits = 1;              // slices of k; 1: the product is made in one go
};

struct GemmOperands {
  const BFloat16* x = nullptr;
  const BFloat16* w = nullptr;
  const BFloat16* bias = nullptr;
  void* y = nullptr;
  bool operator==(const GemmOperands&) const = default;
};

// Instead of a number of splits: whatever cuBLASLt proposes, which may split k in orders of its
// own.
inline constexpr int32_t kAnyOrder = 0;

// Enqueues products on one stream with a workspace of its own. Both must outlive it.
class GemmLauncher {
 public:
  static absl::StatusOr<GemmLauncher> Create(cudaStream_t stream);

  // Makes room for the partial products of `splits` slices of `shape` at up to `rows` rows. Earlier
  // room stays where it is, since captured graphs may use it. REQUIRES: nothing is being captured.
  absl::Status Reserve(const GemmShape& shape, int32_t splits, int32_t rows);

  // Enqueues one product. Allocates and measures nothing.
  // An error means that the algorithm does not take these operands, that there is no room for
  // partial products, or a broken device.
  absl::Status Run(const GemmShape& shape, const GemmAlgorithm& algorithm, int32_t rows,
                   const GemmOperands& operands) const;

  // As Run, but may leave the sum of a split product to the caller: then y is not written, and the
  // result has the slices until the next product. Otherwise the result has none.
  absl::StatusOr<SplitProduct> RunUnsummed(const GemmShape& shape, const GemmAlgorithm& algorithm,
                                           int32_t rows, const GemmOperands& operands) const;

  // Algorithms that accumulate each of `splits` slices of k in one go, or those of kAnyOrder: what
  // cuBLASLt proposes, in its order, at most `count`; then, for unsplit products, what
  // stream_gemm.h has. Takes milliseconds.
  std::vector<GemmAlgorithm> Propose(const GemmShape& shape, int32_t rows, int32_t splits,
                                     int count) const;

  // Overwrites the room for partial products with NaN, so that one that is not written shows.
  absl::Status PoisonPartials() const;

  cudaStream_t stream() const { return stream_; }

 private:
  GemmLauncher(BlasHandle handle, Memory workspace, cudaStream_t stream)
      : handle_(std::move(handle)), workspace_(std::move(workspace)), stream_(stream) {}

  absl::Status RunBlas(const GemmShape& shape, const GemmAlgorithm& algorithm, int32_t rows,
                       const GemmOperands& operands) const;
  absl::StatusOr<SplitProduct> RunSlices(const GemmShape& shape, const GemmAlgorithm& algorithm,
                                         int32_t rows, const GemmOperands& operands) const;

  BlasHandle handle_;
  Memory workspace_;
  std::vector<Memory> partials_;  // [splits, rows, n] float; the last is the largest, and in use
  cudaStream_t stream_;
};

}  // namespace selfsame::cuda
