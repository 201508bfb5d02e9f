#include "common/kv/block_pool.h"

#include <numeric>

#include "common/check.h"

namespace selfsame {

BlockPool::BlockPool(int32_t block_count)
    : free_(static_cast<size_t>(block_count)), is_allocated_(static_cast<size_t>(block_count)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

bool BlockPool::Allocate(int32_t count, std::vector<int32_t>& blocks) {
  SELFSAME_CHECK(count >= 0);
  if (count > free_count()) return false;
  for (int32_t i = 0; i < count; ++i) {
    blocks.push_back(free_.back());
    is_allocated_[static_cast<size_t>(free_.back())] = true;
    free_.pop_back();
  }
  return true;
}

void BlockPool::Release(int32_t block) {
  SELFSAME_CHECK(block >= 0 && block < block_count());
  SELFSAME_CHECK(is_allocated_[static_cast<size_t>(block)]);
  is_allocated_[static_cast<size_t>(block)] = false;
  free_.push_back(block);
}

}  // namespace selfsame
