#include "common/kv/prefix_index.h"

#include "common/check.h"

namespace selfsame {
namespace {

// Spreads every bit of `value` over all 64 (the finaliser of SplitMix64).
uint64_t Scramble(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

PrefixIndex::PrefixIndex(int32_t block_count) : nodes_(static_cast<size_t>(block_count)) {
  blocks_.reserve(static_cast<size_t>(block_count));
}

size_t PrefixIndex::KeyHash::operator()(const BlockKey& key) const {
  const auto pair = [](int32_t a, int32_t b) {
    return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
  };
  uint64_t hash = Scramble(pair(key.parent, key.adapter) + 0x9e3779b97f4a7c15u);
  for (size_t i = 0; i < key.token_ids.size(); i += 2) {
    hash = Scramble(hash * 31 + pair(key.token_ids[i], key.token_ids[i + 1]));
  }
  return hash;
}

int32_t PrefixIndex::Find(const BlockKey& key) const {
  const auto it = blocks_.find(key);
  return it == blocks_.end() ? -1 : it->second;
}

void PrefixIndex::Insert(const BlockKey& key, int32_t block) {
  SELFSAME_CHECK(!Contains(block));
  const auto [it, is_new] = blocks_.emplace(key, block);
  SELFSAME_CHECK(is_new);
  At(block).key = &it->first;
  if (key.parent == BlockKey::kNoParent) return;
  SELFSAME_CHECK(Contains(key.parent) && key.parent != block);
  ++At(key.parent).child_count;
}

void PrefixIndex::Erase(int32_t block) {
  Node& node = At(block);
  SELFSAME_CHECK(Contains(block) && node.child_count == 0);
  const int32_t parent = node.key->parent;
  if (parent != BlockKey::kNoParent) --At(parent).child_count;
  blocks_.erase(blocks_.find(*node.key));
  node.key = nullptr;
}

}  // namespace selfsame
