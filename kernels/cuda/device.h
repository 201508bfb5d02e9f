#pragma once

// Owners of CUDA's resources, and its error codes as absl::Status.

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

// OK, or an error that names `what` and CUDA's own words. Out of memory: RESOURCE_EXHAUSTED.
absl::Status ToStatus(cudaError_t error, const char* what);
absl::Status ToStatus(cublasStatus_t error, const char* what);

// Device memory, 256-byte aligned, not initialised.
class Memory {
 public:
  static absl::StatusOr<Memory> Create(size_t size_bytes);
  Memory() = default;
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(other.size_bytes_) {}
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  size_t size_bytes() const { return size_bytes_; }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// Page-locked host memory, zeroed.
class PinnedMemory {
 public:
  static absl::StatusOr<PinnedMemory> Create(size_t size_bytes);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(other.size_bytes_) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  size_t size_bytes() const { return size_bytes_; }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

class Stream {
 public:
  static absl::StatusOr<Stream> Create();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();
  cudaStream_t get() const { return stream_; }

 private:
  explicit Stream(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream_;
};

class BlasHandle {
 public:
  static absl::StatusOr<BlasHandle> Create();
  BlasHandle(BlasHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  BlasHandle& operator=(BlasHandle&&) = delete;
  ~BlasHandle();
  cublasLtHandle_t get() const { return handle_; }

 private:
  explicit BlasHandle(cublasLtHandle_t handle) : handle_(handle) {}
  cublasLtHandle_t handle_;
};

}  // namespace selfsame::cuda
