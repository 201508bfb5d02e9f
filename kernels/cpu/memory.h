#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame::cpu {

inline constexpr size_t kCacheLineBytes = 64;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// An owned, zeroed piece of address space. Large pieces are aligned to huge pages and the kernel is
// asked to back them with such pages: streaming weights from small pages costs a fifth of the read
// bandwidth.
class MappedMemory {
 public:
  // RESOURCE_EXHAUSTED when the system refuses. `size_bytes` may be 0.
  static absl::StatusOr<std::unique_ptr<MappedMemory>> Create(size_t size_bytes);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  MappedMemory(void* mapping, size_t mapping_bytes, std::byte* data, size_t size_bytes)
      : mapping_(mapping), mapping_bytes_(mapping_bytes), data_(data), size_bytes_(size_bytes) {}

  void* mapping_;
  size_t mapping_bytes_;
  std::byte* data_;
  size_t size_bytes_;
};

// A cache-line aligned slice of a mapping that it keeps alive.
struct ArenaSlice {
  std::shared_ptr<MappedMemory> mapping;
  std::byte* data = nullptr;
};

// Hands out zeroed slices of large mappings, so that many small weight matrices share huge pages.
// A mapping is released with its last slice. One thread at a time.
class WeightArena {
 public:
  absl::StatusOr<ArenaSlice> Allocate(size_t size_bytes);

 private:
  std::shared_ptr<MappedMemory> mapping_;
  size_t used_bytes_ = 0;
};

// Working memory that grows to the largest size asked for and is then reused. Contents are not
// kept.
class Scratch {
 public:
  // Cache-line aligned. Null when the system has no memory; `status` then says so.
  float* Floats(int64_t count, absl::Status& status);

 private:
  std::unique_ptr<MappedMemory> memory_;
};

// Ops::Allocate of the CPU backend.
class CpuBuffer : public DeviceBuffer {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceBuffer>> Create(size_t size_bytes);

 private:
  explicit CpuBuffer(std::unique_ptr<MappedMemory> memory);

  std::unique_ptr<MappedMemory> memory_;
};

}  // namespace selfsame::cpu
