#include "kernels/cuda/device_info.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "kernels/cuda/device.h"

namespace selfsame::cuda {
namespace {

constexpr int kMinMajorCapability = 8;

}  // namespace

absl::StatusOr<DeviceInfo> OpenDevice(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || index < 0 || index >= count) {
    return FailedPreconditionError(absl::StrCat("there is no CUDA device ", index, ": ",
                                                error != cudaSuccess
                                                    ? cudaGetErrorString(error)
                                                    : absl::StrCat(count, " visible").c_str()));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, index), "reading the device"));
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(index), "selecting the device"));
  if (properties.major < kMinMajorCapability) {
    return FailedPreconditionError(absl::StrCat("CUDA device ", index, ", ", properties.name,
                                                ", is older than compute capability 8.0"));
  }
  return DeviceInfo{.name = properties.name,
                    .processor_count = properties.multiProcessorCount,
                    .capability = 10 * properties.major + properties.minor};
}

std::string DeviceInfo::Scope() const {
  int runtime = 0;
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  return absl::StrCat(name, " sm_", capability, " ", processor_count, " processors, cublasLt ",
                      cublasLtGetVersion(), ", cudart ", runtime);
}

}  // namespace selfsame::cuda
