#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame {

// The device memory of a paged KV cache: for each layer [block][K|V][kv_head][16][head_dim] bf16.
class KvCache {
 public:
  // RESOURCE_EXHAUSTED when the device has not enough memory.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const AttentionShape& shape,
                                                         int32_t layer_count, int32_t block_count,
                                                         Ops& ops);

  // Bytes one block takes over all layers.
  static int64_t BlockBytes(const AttentionShape& shape, int32_t layer_count);

  KvLayer layer(int32_t index) const;
  int32_t block_count() const { return block_count_; }

 private:
  KvCache(std::vector<std::unique_ptr<DeviceBuffer>> layers, int32_t block_count)
      : layers_(std::move(layers)), block_count_(block_count) {}

  std::vector<std::unique_ptr<DeviceBuffer>> layers_;
  int32_t block_count_;
};

}  // namespace selfsame
