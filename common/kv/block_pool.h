#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/prefix_index.h"

namespace selfsame {

// Hands out the physical blocks of a paged KV cache, and keeps what they hold for whoever has the
// same prefix later. Host accounting only. One thread.
//
// A block is held by as many sequences as have it in their table. A block that one of them has
// published stays as it is: nobody writes to it any more, others may hold it too, and once nobody
// does it is cached, until a block is needed and it has been unheld for longest.
//
// Invariants:
//  1. A block is either free, or held, or published and cached.
//  2. Who holds a published block holds its parent. So when a block is cached all that is found
//     under it is cached too, and since sequences give up their last block first, it has been so
//     for longer: what has been unheld for longest is no block's parent.
class BlockPool {
 public:
  // Without `caches_prefixes` nothing is ever published.
  explicit BlockPool(int32_t block_count, bool caches_prefixes = true);

  // Appends `count` blocks, held by the caller alone, to `blocks`; free ones first, then those that
  // have been cached for longest, which are forgotten. False, with none taken, when free_count() is
  // less.
  [[nodiscard]] bool Allocate(int32_t count, std::vector<int32_t>& blocks);
  // The caller holds `block` no longer. REQUIRES: it does, and holds no block whose parent it is.
  void Release(int32_t block);

  // The published block with this key, which the caller holds from now on; -1 when there is none.
  // REQUIRES: the caller holds the parent.
  [[nodiscard]] int32_t HoldPublished(const BlockKey& key);
  // Publishes `block`: its KV was computed from exactly what `key` says, by a pass that is over.
  // Returns the block that has this key from now on, which the caller holds in place of `block`:
  // another one when the same had been published before. REQUIRES: caches_prefixes(); the caller
  // alone holds `block`; it holds the parent, which is published.
  [[nodiscard]] int32_t Publish(const BlockKey& key, int32_t block);

  bool caches_prefixes() const { return caches_prefixes_; }
  int32_t block_count() const { return static_cast<int32_t>(hold_counts_.size()); }
  // Blocks that nobody holds, cached ones included: what Allocate can give.
  int32_t free_count() const { return static_cast<int32_t>(free_.size()) + cached_count_; }
  int32_t cached_count() const { return cached_count_; }
  int32_t published_count() const { return index_.size(); }

 private:
  struct Link {
    int32_t previous = 0;
    int32_t next = 0;
  };

  int32_t& HoldCount(int32_t block) { return hold_counts_[static_cast<size_t>(block)]; }
  Link& LinkOf(int32_t block) { return links_[static_cast<size_t>(block)]; }
  // The list of cached blocks.
  void AppendCached(int32_t block);
  void RemoveCached(int32_t block);
  int32_t EvictOldest();

  const bool caches_prefixes_;
  std::vector<int32_t> free_;         // a stack: the newest released is the next handed out
  std::vector<int32_t> hold_counts_;  // [block]
  PrefixIndex index_;
  // [block], and one more: both ends of the ring of cached blocks, longest unheld first.
  std::vector<Link> links_;
  int32_t cached_count_ = 0;
};

}  // namespace selfsame
