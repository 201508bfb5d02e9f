#include "common/errors.h"
#include "kernels/cuda/cuda_ops.h"

namespace selfsame {

absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(const CudaOptions&) {
  return FailedPreconditionError("this build has no CUDA backend; build it where nvcc is");
}

}  // namespace selfsame
