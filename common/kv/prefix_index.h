#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/ops.h"

namespace selfsame {

// What the KV of one full block depends on: the blocks before it, the tokens of the block itself,
// and the weights they were computed with. Two blocks with the same key hold KV of the same prefix.
struct BlockKey {
  static constexpr int32_t kNoParent = -1;

  int32_t parent = kNoParent;  // the block of the 16 positions before
  int32_t adapter = 0;         // 0: the model alone
  std::array<int32_t, kKvBlockTokens> token_ids{};

  bool operator==(const BlockKey&) const = default;
};

// Which blocks hold the KV of which prefixes: a tree of blocks, each found under its parent by the
// exact tokens. A hash only leads to the place to look; keys are compared in full. Host accounting
// only. One thread.
//
// Invariant: the parent of a block in the index is in the index. So a block's number is all of its
// prefix, and cannot come to stand for another one while anything is found under it.
class PrefixIndex {
 public:
  // For blocks 0 to block_count - 1.
  explicit PrefixIndex(int32_t block_count);

  // The block with this key; -1 when there is none.
  int32_t Find(const BlockKey& key) const;
  // REQUIRES: neither the key nor the block is in the index; the parent is.
  void Insert(const BlockKey& key, int32_t block);
  // REQUIRES: the block is in the index and no block's parent.
  void Erase(int32_t block);

  bool Contains(int32_t block) const { return At(block).key != nullptr; }
  int32_t size() const { return static_cast<int32_t>(blocks_.size()); }

 private:
  struct KeyHash {
    size_t operator()(const BlockKey& key) const;
  };
  struct Node {
    const BlockKey* key = nullptr;  // in blocks_; null: not in the index
    int32_t child_count = 0;
  };

  Node& At(int32_t block) { return nodes_[static_cast<size_t>(block)]; }
  const Node& At(int32_t block) const { return nodes_[static_cast<size_t>(block)]; }

  std::unordered_map<BlockKey, int32_t, KeyHash> blocks_;
  std::vector<Node> nodes_;  // [block]
};

}  // namespace selfsame
