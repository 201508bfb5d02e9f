#include "kernels/cuda/gemm.h"

#include <algorithm>

#include "common/errors.h"
#include "kernels/cuda/stream_gemm.h"

namespace selfsame::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

// Partial products are plain float products; bias and rounding come with their sum.
GemmShape PartialShape(const GemmShape& shape) {
  return {.n = shape.n, .k = shape.k, .output = GemmOutput::kFloat};
}

size_t PartialBytes(const GemmShape& shape, int32_t splits, int32_t rows) {
  return static_cast<size_t>(splits) * static_cast<size_t>(rows) * static_cast<size_t>(shape.n) *
         sizeof(float);
}

// cuBLASLt is column-major: it computes yᵀ [n, rows] = W [k, n]ᵀ · xᵀ [k, rows]. The descriptors
// are plain values on the stack, so that a launch allocates nothing.
struct Descriptors {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t w;
  cublasLtMatrixLayoutOpaque_t x;
  cublasLtMatrixLayoutOpaque_t y;
};

cublasStatus_t DescribeProduct(const GemmShape& shape, const BFloat16* bias,
                               cublasLtMatmulDescOpaque_t& product) {
  cublasStatus_t status = cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = cublasLtMatmulDescSetAttribute(&product, attribute, &value, sizeof(value));
  };
  const cublasOperation_t transposed = CUBLAS_OP_T;
  set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
  if (shape.has_bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  return status;
}

// Slices of k are the matrices of a batch: columns [i * k / splits, (i + 1) * k / splits) of x and
// W, and output i of y [splits, rows, n].
cublasStatus_t Describe(const GemmShape& shape, int32_t splits, int32_t rows, const BFloat16* bias,
                        Descriptors& descriptors) {
  const int64_t depth = shape.k / splits;
  const cudaDataType output_type = shape.output == GemmOutput::kFloat ? CUDA_R_32F : CUDA_R_16BF;
  cublasStatus_t status = DescribeProduct(shape, bias, descriptors.product);
  const auto init = [&](cublasLtMatrixLayoutOpaque_t& layout, cudaDataType type, int64_t height,
                        int64_t width, int64_t pitch, int64_t slice_offset) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(height),
                                      static_cast<uint64_t>(width), pitch);
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      if (status != CUBLAS_STATUS_SUCCESS) return;
      status = cublasLtMatrixLayoutSetAttribute(&layout, attribute, &value, sizeof(value));
    };
    if (splits == 1) return;
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, splits);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, slice_offset);
  };
  init(descriptors.w, CUDA_R_16BF, depth, shape.n, shape.k, depth);
  init(descriptors.x, CUDA_R_16BF, depth, rows, shape.k, depth);
  init(descriptors.y, output_type, shape.n, rows, shape.n, rows * shape.n);
  return status;
}

// Whether the algorithm accumulates over all of its k in one go.
bool IsSingleSplit(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t reduction = 0;
  int32_t splits = 0;
  size_t written = 0;
  const bool is_known =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                           &reduction, sizeof(reduction),
                                           &written) == CUBLAS_STATUS_SUCCESS &&
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                           sizeof(splits), &written) == CUBLAS_STATUS_SUCCESS;
  return is_known && reduction == CUBLASLT_REDUCTION_SCHEME_NONE && splits >= 0 && splits <= 1;
}

class Preference {
 public:
  Preference() {
    if (cublasLtMatmulPreferenceCreate(&preference_) != CUBLAS_STATUS_SUCCESS)
      preference_ = nullptr;
  }
  ~Preference() {
    if (preference_ != nullptr) static_cast<void>(cublasLtMatmulPreferenceDestroy(preference_));
  }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <typename T>
  bool Set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    return preference_ != nullptr &&
           cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)) ==
               CUBLAS_STATUS_SUCCESS;
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

absl::StatusOr<GemmLauncher> GemmLauncher::Create(cudaStream_t stream) {
  RETURN_IF_ERROR(ToStatus(PrepareStreamGemm(), "preparing kernels"));
  ASSIGN_OR_RETURN(BlasHandle handle, BlasHandle::Create());
  ASSIGN_OR_RETURN(Memory workspace, Memory::Create(kWorkspaceBytes));
  return GemmLauncher(std::move(handle), std::move(workspace), stream);
}

absl::Status GemmLauncher::Reserve(const GemmShape& shape, int32_t splits, int32_t rows) {
  if (splits <= 1) return absl::OkStatus();
  const size_t size_bytes = PartialBytes(shape, splits, rows);
  if (!partials_.empty() && partials_.back().size_bytes() >= size_bytes) return absl::OkStatus();
  ASSIGN_OR_RETURN(Memory memory, Memory::Create(size_bytes));
  partials_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::Status GemmLauncher::PoisonPartials() const {
  if (partials_.empty()) return absl::OkStatus();
  // All bits set is NaN.
  return ToStatus(
      cudaMemsetAsync(partials_.back().data(), 0xff, partials_.back().size_bytes(), stream_),
      "poisoning");
}

absl::Status GemmLauncher::Run(const GemmShape& shape, const GemmAlgorithm& algorithm, int32_t rows,
                               const GemmOperands& operands) const {
  if (algorithm.splits > 1) {
    ASSIGN_OR_RETURN(const SplitProduct product, RunSlices(shape, algorithm, rows, operands));
    return ToStatus(RunSplitSum({.product = product,
                                 .bias = shape.has_bias ? operands.bias : nullptr,
                                 .y = operands.y,
                                 .is_float = shape.output == GemmOutput::kFloat,
                                 .n = shape.n},
                                stream_),
                    "adding partial products");
  }
  if (algorithm.stream_config < 0) return RunBlas(shape, algorithm, rows, operands);
  return ToStatus(RunStreamGemm(algorithm.stream_config,
                                {.x = operands.x,
                                 .w = operands.w,
                                 .y = operands.y,
                                 .is_float = shape.output == GemmOutput::kFloat,
                                 .rows = rows,
                                 .n = shape.n,
                                 .k = shape.k},
                                stream_),
                  "matrix product");
}

absl::Status GemmLauncher::RunBlas(const GemmShape& shape, const GemmAlgorithm& algorithm,
                                   int32_t rows, const GemmOperands& operands) const {
  Descriptors descriptors;
  const cublasStatus_t status = Describe(shape, algorithm.splits, rows, operands.bias, descriptors);
  if (status != CUBLAS_STATUS_SUCCESS) return ToStatus(status, "describing a matrix product");
  const float one = 1.0f;
  const float zero = 0.0f;
  return ToStatus(cublasLtMatmul(handle_.get(), &descriptors.product, &one, operands.w,
                                 &descriptors.w, operands.x, &descriptors.x, &zero, operands.y,
                                 &descriptors.y, operands.y, &descriptors.y, &algorithm.blas,
                                 workspace_.data(), workspace_.size_bytes(), stream_),
                  "matrix product");
}

absl::StatusOr<SplitProduct> GemmLauncher::RunUnsummed(const GemmShape& shape,
                                                       const GemmAlgorithm& algorithm, int32_t rows,
                                                       const GemmOperands& operands) const {
  if (algorithm.splits > 1 && !shape.has_bias) return RunSlices(shape, algorithm, rows, operands);
  RETURN_IF_ERROR(Run(shape, algorithm, rows, operands));
  return SplitProduct{};
}

absl::StatusOr<SplitProduct> GemmLauncher::RunSlices(const GemmShape& shape,
                                                     const GemmAlgorithm& algorithm, int32_t rows,
                                                     const GemmOperands& operands) const {
  if (algorithm.stream_config >= 0 || shape.k % algorithm.splits != 0 || partials_.empty() ||
      partials_.back().size_bytes() < PartialBytes(shape, algorithm.splits, rows)) {
    return ToStatus(cudaErrorInvalidValue, "split matrix product");
  }
  auto* partials = partials_.back().data<float>();
  RETURN_IF_ERROR(RunBlas(PartialShape(shape), algorithm, rows,
                          {.x = operands.x, .w = operands.w, .bias = nullptr, .y = partials}));
  return SplitProduct{
      .partials = partials, .splits = algorithm.splits, .slice_size = rows * shape.n};
}

std::vector<GemmAlgorithm> GemmLauncher::Propose(const GemmShape& shape, int32_t rows,
                                                 int32_t splits, int count) const {
  const int32_t slices = std::max(1, splits);
  Descriptors descriptors;
  Preference preference;
  // Any bias pointer will do; only its alignment is looked at.
  const auto* bias = workspace_.data<BFloat16>();
  const uint32_t reductions =
      splits == kAnyOrder ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_NONE;
  const uint64_t workspace_bytes = workspace_.size_bytes();
  if (shape.k % slices != 0 ||
      Describe(slices > 1 ? PartialShape(shape) : shape, slices, rows, bias, descriptors) !=
          CUBLAS_STATUS_SUCCESS ||
      !preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes) ||
      !preference.Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions)) {
    return {};
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  if (cublasLtMatmulAlgoGetHeuristic(handle_.get(), &descriptors.product, &descriptors.w,
                                     &descriptors.x, &descriptors.y, &descriptors.y,
                                     preference.get(), count, results.data(),
                                     &found) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  std::vector<GemmAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    if (splits != kAnyOrder && !IsSingleSplit(result.algo)) continue;
    algorithms.push_back({.blas = result.algo, .splits = slices});
  }
  for (int config = 0; config < kStreamGemmConfigs && slices == 1 && !shape.has_bias; ++config) {
    if (StreamGemmTakes(config, rows, shape.k)) algorithms.push_back({.stream_config = config});
  }
  return algorithms;
}

}  // namespace selfsame::cuda
