#pragma once

// Fills a weight matrix on the device (kernels/synthetic.h). Each element depends on its place
// alone.

#include <cuda_runtime_api.h>

#include "kernels/bfloat16.h"
#include "kernels/synthetic.h"

namespace selfsame::cuda {

// out: [part.rows, part.cols].
cudaError_t RunGenerate(const SyntheticPart& part, BFloat16* out, cudaStream_t stream);

}  // namespace selfsame::cuda
