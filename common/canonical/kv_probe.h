#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/kv/kv_cache.h"
#include "common/model/model.h"

namespace selfsame {

// Host copy of some blocks of every layer: [layer][block][K|V][kv_head][16][head_dim].
using KvImage = std::vector<BFloat16>;

// A KV cache that the self-test looks into and fills by hand. Blocks below `first_free_block` keep
// what they have; all others are poisoned before each pass with NaN, so that whoever reads a
// position that is not his own cannot stay unnoticed. One thread.
class KvProbe {
 public:
  KvProbe(Model& model, std::unique_ptr<KvCache> kv, int32_t first_free_block);

  // Fills block 0 with NaN and blocks 1 .. first_free_block - 1 with small numbers that depend on
  // nothing but their place.
  void WritePrefixBlocks();
  // Fills the blocks from first_free_block on with NaN.
  void Poison();

  // The contents of `blocks`.
  KvImage Read(std::span<const int32_t> blocks) const;
  // Writes the first `slot_count` positions of `image` to `blocks`, NaN to the later ones.
  void Write(std::span<const int32_t> blocks, const KvImage& image, int32_t slot_count);
  // Whether two images of `block_count` blocks have the same bits in the first `slot_count`
  // positions.
  bool IsEqual(const KvImage& a, const KvImage& b, int32_t block_count, int32_t slot_count) const;
  // Nobody has written to block 0.
  bool IsGuardIntact() const;

  KvCache& kv() { return *kv_; }

 private:
  BFloat16* BlockData(int32_t layer, int32_t block) const;

  Model& model_;
  std::unique_ptr<KvCache> kv_;
  const int32_t first_free_block_;
  const int32_t layer_count_;
  const int32_t head_dim_;
  const size_t block_elements_;  // of one layer
};

}  // namespace selfsame
