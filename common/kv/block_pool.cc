#include "common/kv/block_pool.h"

#include <numeric>

#include "common/check.h"

namespace selfsame {

BlockPool::BlockPool(int32_t block_count, bool caches_prefixes)
    : caches_prefixes_(caches_prefixes),
      free_(static_cast<size_t>(block_count)),
      hold_counts_(static_cast<size_t>(block_count)),
      index_(block_count),
      links_(static_cast<size_t>(block_count) + 1) {
  std::iota(free_.rbegin(), free_.rend(), 0);
  links_.back() = {.previous = block_count, .next = block_count};
}

bool BlockPool::Allocate(int32_t count, std::vector<int32_t>& blocks) {
  SELFSAME_CHECK(count >= 0);
  if (count > free_count()) return false;
  for (int32_t i = 0; i < count; ++i) {
    int32_t block = 0;
    if (free_.empty()) {
      block = EvictOldest();
    } else {
      block = free_.back();
      free_.pop_back();
    }
    HoldCount(block) = 1;
    blocks.push_back(block);
  }
  return true;
}

void BlockPool::Release(int32_t block) {
  SELFSAME_CHECK(block >= 0 && block < block_count());
  SELFSAME_CHECK(HoldCount(block) > 0);
  if (--HoldCount(block) > 0) return;
  if (index_.Contains(block)) {
    AppendCached(block);
  } else {
    free_.push_back(block);
  }
}

int32_t BlockPool::HoldPublished(const BlockKey& key) {
  const int32_t block = index_.Find(key);
  if (block < 0) return -1;
  if (HoldCount(block)++ == 0) RemoveCached(block);
  return block;
}

int32_t BlockPool::Publish(const BlockKey& key, int32_t block) {
  SELFSAME_CHECK(caches_prefixes_ && HoldCount(block) == 1);
  const int32_t earlier = HoldPublished(key);
  if (earlier < 0) {
    index_.Insert(key, block);
    return block;
  }
  SELFSAME_CHECK(earlier != block);
  Release(block);
  return earlier;
}

void BlockPool::AppendCached(int32_t block) {
  const int32_t end = block_count();
  LinkOf(block) = {.previous = LinkOf(end).previous, .next = end};
  LinkOf(LinkOf(block).previous).next = block;
  LinkOf(end).previous = block;
  ++cached_count_;
}

void BlockPool::RemoveCached(int32_t block) {
  const Link link = LinkOf(block);
  LinkOf(link.previous).next = link.next;
  LinkOf(link.next).previous = link.previous;
  --cached_count_;
}

int32_t BlockPool::EvictOldest() {
  const int32_t block = LinkOf(block_count()).next;
  RemoveCached(block);
  index_.Erase(block);
  return block;
}

}  // namespace selfsame
