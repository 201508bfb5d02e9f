#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/errors.h"

namespace selfsame::cpu {
namespace {

// Large enough that the unused end of a mapping and its last huge page do not matter.
constexpr size_t kArenaMappingBytes = size_t{64} << 20;
constexpr int64_t kRetryAfterMs = 1000;

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedMemory>> MappedMemory::Create(size_t size_bytes) {
  const bool is_huge = size_bytes >= kHugePageBytes;
  const size_t mapping_bytes = is_huge ? RoundUp(size_bytes, kHugePageBytes) + kHugePageBytes
                                       : std::max<size_t>(size_bytes, 1);
  void* mapping =
      mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return ResourceExhaustedError(
        "memory for " + std::to_string(size_bytes) + " bytes of weights, activations or KV",
        kRetryAfterMs);
  }
  auto* data = static_cast<std::byte*>(mapping);
  if (is_huge) {
    const size_t past = reinterpret_cast<uintptr_t>(mapping) % kHugePageBytes;
    if (past != 0) data += kHugePageBytes - past;
#ifdef MADV_HUGEPAGE
    // Only advice: without huge pages everything is correct and somewhat slower.
    madvise(data, RoundUp(size_bytes, kHugePageBytes), MADV_HUGEPAGE);
#endif
  }
  return std::unique_ptr<MappedMemory>(new MappedMemory(mapping, mapping_bytes, data, size_bytes));
}

MappedMemory::~MappedMemory() { munmap(mapping_, mapping_bytes_); }

absl::StatusOr<ArenaSlice> WeightArena::Allocate(size_t size_bytes) {
  const size_t needed_bytes = RoundUp(size_bytes, kCacheLineBytes);
  if (mapping_ == nullptr || mapping_->size_bytes() - used_bytes_ < needed_bytes) {
    ASSIGN_OR_RETURN(mapping_, MappedMemory::Create(std::max(needed_bytes, kArenaMappingBytes)));
    used_bytes_ = 0;
  }
  ArenaSlice slice{mapping_, mapping_->data() + used_bytes_};
  used_bytes_ += needed_bytes;
  return slice;
}

float* Scratch::Floats(int64_t count, absl::Status& status) {
  const size_t size_bytes = static_cast<size_t>(count) * sizeof(float);
  if (memory_ == nullptr || memory_->size_bytes() < size_bytes) {
    memory_.reset();
    auto memory = MappedMemory::Create(size_bytes);
    if (!memory.ok()) {
      status = memory.status();
      return nullptr;
    }
    memory_ = *std::move(memory);
  }
  return reinterpret_cast<float*>(memory_->data());
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> CpuBuffer::Create(size_t size_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedMemory> memory, MappedMemory::Create(size_bytes));
  return std::unique_ptr<DeviceBuffer>(new CpuBuffer(std::move(memory)));
}

CpuBuffer::CpuBuffer(std::unique_ptr<MappedMemory> memory) : memory_(std::move(memory)) {
  data_ = memory_->data();
  size_bytes_ = memory_->size_bytes();
}

}  // namespace selfsame::cpu
