#include "kernels/cuda/device.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace selfsame::cuda {

absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat("CUDA: ", what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return ResourceExhaustedError(message, 0);
  return InternalError(message);
}

absl::Status ToStatus(cublasStatus_t error, const char* what) {
  if (error == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return InternalError(absl::StrCat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(error)));
}

absl::StatusOr<Memory> Memory::Create(size_t size_bytes) {
  Memory memory;
  memory.size_bytes_ = size_bytes;
  if (size_bytes > 0) {
    RETURN_IF_ERROR(ToStatus(cudaMalloc(&memory.data_, size_bytes),
                             absl::StrCat("allocating ", size_bytes, " bytes").c_str()));
  }
  return memory;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

// Errors when freeing have no receiver; a lost device is reported by the next pass.
Memory::~Memory() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

absl::StatusOr<PinnedMemory> PinnedMemory::Create(size_t size_bytes) {
  PinnedMemory memory;
  memory.size_bytes_ = size_bytes;
  if (size_bytes > 0) {
    RETURN_IF_ERROR(ToStatus(cudaMallocHost(&memory.data_, size_bytes), "pinning host memory"));
    std::memset(memory.data_, 0, size_bytes);
  }
  return memory;
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
}

absl::StatusOr<Stream> Stream::Create() {
  cudaStream_t stream = nullptr;
  RETURN_IF_ERROR(
      ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
  return Stream(stream);
}

Stream::~Stream() {
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

absl::StatusOr<BlasHandle> BlasHandle::Create() {
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(ToStatus(cublasLtCreate(&handle), "creating a handle"));
  return BlasHandle(handle);
}

BlasHandle::~BlasHandle() {
  if (handle_ != nullptr) static_cast<void>(cublasLtDestroy(handle_));
}

}  // namespace selfsame::cuda
