#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/block_pool.h"

namespace selfsame {

// What a model keeps of one sequence between passes. `length` counts the positions whose state is
// there. Models with attention keep KV and can truncate anywhere; a recurrent model would have to
// restore a snapshot instead, which is why callers see this interface only. One thread.
class SequenceState {
 public:
  virtual ~SequenceState() = default;

  // Makes room for positions below `length`. False, with nothing changed, when memory is short.
  [[nodiscard]] virtual bool Reserve(int32_t length) = 0;
  // Positions below `length` have been computed. REQUIRES: room for them.
  virtual void Advance(int32_t length) = 0;
  // Forgets positions from `length` on and frees what only they used.
  virtual void Truncate(int32_t length) = 0;

  virtual int32_t length() const = 0;
  // Physical blocks of positions below the reserved length; valid until the next call that changes
  // the state.
  virtual const int32_t* block_table() const = 0;
  virtual int32_t block_count() const = 0;
};

// KV in blocks of kKvBlockTokens from a pool, which must outlive it. Gives its blocks back when
// destroyed.
class PagedSequenceState final : public SequenceState {
 public:
  explicit PagedSequenceState(BlockPool& pool) : pool_(pool) {}
  ~PagedSequenceState() override { Truncate(0); }
  PagedSequenceState(const PagedSequenceState&) = delete;
  PagedSequenceState& operator=(const PagedSequenceState&) = delete;

  bool Reserve(int32_t length) override;
  void Advance(int32_t length) override;
  void Truncate(int32_t length) override;
  int32_t length() const override { return length_; }
  const int32_t* block_table() const override { return blocks_.data(); }
  int32_t block_count() const override { return static_cast<int32_t>(blocks_.size()); }

 private:
  BlockPool& pool_;
  std::vector<int32_t> blocks_;
  int32_t length_ = 0;
};

// Blocks that `length` positions take.
int32_t BlocksFor(int32_t length);

}  // namespace selfsame
