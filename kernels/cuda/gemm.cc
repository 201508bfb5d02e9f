#include "kernels/cuda/gemm.h"

#include "common/errors.h"
#include "kernels/cuda/stream_gemm.h"

namespace selfsame::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

// cuBLASLt is column-major: it computes yᵀ [n, rows] = W [k, n]ᵀ · xᵀ [k, rows]. The descriptors
// are plain values on the stack, so that a launch allocates nothing.
struct Descriptors {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t w;
  cublasLtMatrixLayoutOpaque_t x;
  cublasLtMatrixLayoutOpaque_t y;
};

cublasStatus_t Describe(const GemmShape& shape, int32_t rows, const BFloat16* bias,
                        Descriptors& descriptors) {
  const auto n = static_cast<uint64_t>(shape.n);
  const auto k = static_cast<uint64_t>(shape.k);
  const auto m = static_cast<uint64_t>(rows);
  const cudaDataType output_type = shape.output == GemmOutput::kFloat ? CUDA_R_32F : CUDA_R_16BF;
  cublasStatus_t status =
      cublasLtMatmulDescInit(&descriptors.product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = cublasLtMatmulDescSetAttribute(&descriptors.product, attribute, &value, sizeof(value));
  };
  const cublasOperation_t transposed = CUBLAS_OP_T;
  set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
  if (shape.has_bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  status = cublasLtMatrixLayoutInit(&descriptors.w, CUDA_R_16BF, k, n, shape.k);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  status = cublasLtMatrixLayoutInit(&descriptors.x, CUDA_R_16BF, k, m, shape.k);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return cublasLtMatrixLayoutInit(&descriptors.y, output_type, n, m, shape.n);
}

// Whether the algorithm accumulates over all of K in one go.
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

absl::Status GemmLauncher::Run(const GemmShape& shape, const GemmAlgorithm& algorithm, int32_t rows,
                               const GemmOperands& operands) const {
  if (algorithm.stream_config >= 0) {
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
  Descriptors descriptors;
  const cublasStatus_t status = Describe(shape, rows, operands.bias, descriptors);
  if (status != CUBLAS_STATUS_SUCCESS) return ToStatus(status, "describing a matrix product");
  const float one = 1.0f;
  const float zero = 0.0f;
  return ToStatus(cublasLtMatmul(handle_.get(), &descriptors.product, &one, operands.w,
                                 &descriptors.w, operands.x, &descriptors.x, &zero, operands.y,
                                 &descriptors.y, operands.y, &descriptors.y, &algorithm.blas,
                                 workspace_.data(), workspace_.size_bytes(), stream_),
                  "matrix product");
}

std::vector<GemmAlgorithm> GemmLauncher::Propose(const GemmShape& shape, int32_t rows,
                                                 GemmSearchSpace space, int count) const {
  Descriptors descriptors;
  Preference preference;
  // Any bias pointer will do; only its alignment is looked at.
  const auto* bias = workspace_.data<BFloat16>();
  const uint32_t reductions = space == GemmSearchSpace::kAll ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                             : CUBLASLT_REDUCTION_SCHEME_NONE;
  const uint64_t workspace_bytes = workspace_.size_bytes();
  if (Describe(shape, rows, bias, descriptors) != CUBLAS_STATUS_SUCCESS ||
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
    if (space == GemmSearchSpace::kSingleSplit && !IsSingleSplit(result.algo)) continue;
    algorithms.push_back({.blas = result.algo});
  }
  for (int config = 0; config < kStreamGemmConfigs && !shape.has_bias; ++config) {
    if (StreamGemmTakes(config, rows, shape.k)) algorithms.push_back({.stream_config = config});
  }
  return algorithms;
}

}  // namespace selfsame::cuda
