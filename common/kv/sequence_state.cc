#include "common/kv/sequence_state.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/ops.h"

namespace selfsame {

int32_t BlocksFor(int32_t length) { return (length + kKvBlockTokens - 1) / kKvBlockTokens; }

bool PagedSequenceState::Reserve(int32_t length) {
  return pool_.Allocate(std::max(0, BlocksFor(length) - block_count()), blocks_);
}

void PagedSequenceState::Advance(int32_t length) {
  SELFSAME_CHECK(length >= length_ && BlocksFor(length) <= block_count());
  length_ = length;
}

void PagedSequenceState::Truncate(int32_t length) {
  length_ = std::min(length_, length);
  while (block_count() > BlocksFor(length_)) {
    pool_.Release(blocks_.back());
    blocks_.pop_back();
  }
}

}  // namespace selfsame
