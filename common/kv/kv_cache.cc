#include "common/kv/kv_cache.h"

#include "common/errors.h"

namespace selfsame {

int64_t KvCache::BlockBytes(const AttentionShape& shape, int32_t layer_count) {
  return int64_t{2} * shape.kv_head_count * kKvBlockTokens * shape.head_dim *
         static_cast<int64_t>(sizeof(BFloat16)) * layer_count;
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const AttentionShape& shape,
                                                         int32_t layer_count, int32_t block_count,
                                                         Ops& ops) {
  std::vector<std::unique_ptr<DeviceBuffer>> layers;
  for (int32_t i = 0; i < layer_count; ++i) {
    ASSIGN_OR_RETURN(auto buffer,
                     ops.Allocate(static_cast<size_t>(BlockBytes(shape, 1) * block_count)));
    layers.push_back(std::move(buffer));
  }
  return std::unique_ptr<KvCache>(new KvCache(std::move(layers), block_count));
}

KvLayer KvCache::layer(int32_t index) const {
  return {static_cast<BFloat16*>(layers_[static_cast<size_t>(index)]->data())};
}

}  // namespace selfsame
