#pragma once

#include <cstdint>
#include <vector>

namespace selfsame {

// Hands out the physical blocks of a paged KV cache. Host accounting only. One thread.
//
// Invariant: every block is either free or held by exactly one owner.
class BlockPool {
 public:
  explicit BlockPool(int32_t block_count);

  // Appends `count` blocks to `blocks`, or takes none and returns false when fewer are free.
  [[nodiscard]] bool Allocate(int32_t count, std::vector<int32_t>& blocks);
  // REQUIRES: `block` is allocated.
  void Release(int32_t block);

  int32_t block_count() const { return static_cast<int32_t>(is_allocated_.size()); }
  int32_t free_count() const { return static_cast<int32_t>(free_.size()); }

 private:
  std::vector<int32_t> free_;  // a stack: the newest released is the next handed out
  std::vector<bool> is_allocated_;
};

}  // namespace selfsame
