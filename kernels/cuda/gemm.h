#pragma once

// Matrix products y = x · Wᵀ + bias, by cuBLASLt or by stream_gemm.h for few rows: bf16 operands,
// float accumulation. x: [rows, k],
// W: [n, k], y: [rows, n], bias: [n], all row-major and contiguous.

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda/device.h"

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
  cublasLtMatmulAlgo_t blas = {};
  int32_t stream_config = -1;  // -1: `blas`
};

struct GemmOperands {
  const BFloat16* x = nullptr;
  const BFloat16* w = nullptr;
  const BFloat16* bias = nullptr;
  void* y = nullptr;
  bool operator==(const GemmOperands&) const = default;
};

// Which algorithms a search may propose.
enum class GemmSearchSpace {
  kSingleSplit,  // no split of K: one accumulation order
  kAll,
};

// Enqueues products on one stream with a workspace of its own. Both must outlive it.
class GemmLauncher {
 public:
  static absl::StatusOr<GemmLauncher> Create(cudaStream_t stream);

  // Enqueues one product. Allocates and measures nothing.
  // An error means that the algorithm does not take these operands, or a broken device.
  absl::Status Run(const GemmShape& shape, const GemmAlgorithm& algorithm, int32_t rows,
                   const GemmOperands& operands) const;

  // What cuBLASLt proposes, in its order, at most `count`; then what stream_gemm.h has. Takes
  // milliseconds.
  std::vector<GemmAlgorithm> Propose(const GemmShape& shape, int32_t rows, GemmSearchSpace space,
                                     int count) const;

  cudaStream_t stream() const { return stream_; }

 private:
  GemmLauncher(BlasHandle handle, Memory workspace, cudaStream_t stream)
      : handle_(std::move(handle)), workspace_(std::move(workspace)), stream_(stream) {}

  BlasHandle handle_;
  Memory workspace_;
  cudaStream_t stream_;
};

}  // namespace selfsame::cuda
