#include "common/kv/sequence_state.h"

#include <algorithm>
#include <utility>

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
  // Positions of a published block cannot be computed anew in their place.
  if (length_ < published_count_ * kKvBlockTokens) length_ -= length_ % kKvBlockTokens;
  while (block_count() > BlocksFor(length_)) {
    pool_.Release(blocks_.back());
    blocks_.pop_back();
  }
  published_count_ = std::min(published_count_, block_count());
}

BlockKey PagedSequenceState::KeyOf(int32_t index, TokenAt token_at) const {
  BlockKey key;
  if (index > 0) key.parent = blocks_[static_cast<size_t>(index) - 1];
  key.adapter = adapter_;
  int32_t position = index * kKvBlockTokens;
  for (int32_t& token_id : key.token_ids) token_id = token_at(position++);
  return key;
}

void PagedSequenceState::TakeCached(TokenAt token_at, int32_t max_length) {
  // A block is found under its parent's number, so all before it must be published.
  if (pool_.published_count() == 0 || published_count_ < length_ / kKvBlockTokens) return;
  while ((published_count_ + 1) * kKvBlockTokens <= max_length) {
    const int32_t block = pool_.HoldPublished(KeyOf(published_count_, token_at));
    if (block < 0) break;
    if (published_count_ < block_count()) {
      // Reserved, or begun.
      pool_.Release(std::exchange(blocks_[static_cast<size_t>(published_count_)], block));
    } else {
      blocks_.push_back(block);
    }
    ++published_count_;
    length_ = published_count_ * kKvBlockTokens;
  }
}

void PagedSequenceState::Publish(TokenAt token_at, int32_t length) {
  if (!pool_.caches_prefixes()) return;
  const int32_t full_count = std::min(length, length_) / kKvBlockTokens;
  for (; published_count_ < full_count; ++published_count_) {
    int32_t& block = blocks_[static_cast<size_t>(published_count_)];
    block = pool_.Publish(KeyOf(published_count_, token_at), block);
  }
}

}  // namespace selfsame
