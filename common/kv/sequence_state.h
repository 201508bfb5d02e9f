#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/kv/block_pool.h"

namespace selfsame {

// What a model keeps of one sequence between passes. `length` counts the positions whose state is
// there. Models with attention keep KV and can truncate anywhere; a recurrent model would have to
// restore a snapshot instead, which is why callers see this interface only. One thread.
class SequenceState {
 public:
  // The token at a position of the sequence.
  using TokenAt = absl::FunctionRef<int32_t(int32_t position)>;

  virtual ~SequenceState() = default;

  // Makes room for positions below `length`. False, with nothing changed, when memory is short.
  [[nodiscard]] virtual bool Reserve(int32_t length) = 0;
  // Positions below `length` have been computed. REQUIRES: room for them.
  virtual void Advance(int32_t length) = 0;
  // Forgets positions from `length` on and frees what only they used; also some before them, where
  // they share what must not be written to any more.
  virtual void Truncate(int32_t length) = 0;

  // The prefix cache, shared by all sequences of a pool.

  // Takes over what is published of the positions from length() to `max_length`, as far as the
  // tokens are the same: for a new sequence, or one whose beginning somebody else has computed
  // faster. length() says how far that went; room that is reserved stays.
  virtual void TakeCached(TokenAt token_at, int32_t max_length) = 0;
  // Lets later sequences take over what is computed of the positions below `length`. REQUIRES:
  // their tokens will not change any more, and the state was computed from exactly those.
  virtual void Publish(TokenAt token_at, int32_t length) = 0;

  virtual int32_t length() const = 0;
  // Physical blocks of positions below the reserved length; valid until the next call that changes
  // the state.
  virtual const int32_t* block_table() const = 0;
  virtual int32_t block_count() const = 0;
};

// KV in blocks of kKvBlockTokens from a pool, which must outlive it. Gives its blocks back when
// destroyed. Full blocks are published; where the pool has one with the same prefix already, that
// one takes the place of ours.
//
// Invariant: the first published_count_ blocks, all full, are published; the others are ours alone.
// Rows are computed from length() on, so no published block is written to.
class PagedSequenceState final : public SequenceState {
 public:
  // `adapter`: what the KV depends on beside the tokens; 0: nothing.
  explicit PagedSequenceState(BlockPool& pool, int32_t adapter = 0)
      : pool_(pool), adapter_(adapter) {}
  ~PagedSequenceState() override { Truncate(0); }
  PagedSequenceState(const PagedSequenceState&) = delete;
  PagedSequenceState& operator=(const PagedSequenceState&) = delete;

  bool Reserve(int32_t length) override;
  void Advance(int32_t length) override;
  void Truncate(int32_t length) override;
  void TakeCached(TokenAt token_at, int32_t max_length) override;
  void Publish(TokenAt token_at, int32_t length) override;
  int32_t length() const override { return length_; }
  const int32_t* block_table() const override { return blocks_.data(); }
  int32_t block_count() const override { return static_cast<int32_t>(blocks_.size()); }

 private:
  BlockKey KeyOf(int32_t index, TokenAt token_at) const;

  BlockPool& pool_;
  const int32_t adapter_;
  std::vector<int32_t> blocks_;
  int32_t published_count_ = 0;
  int32_t length_ = 0;
};

// Blocks that `length` positions take.
int32_t BlocksFor(int32_t length);

}  // namespace selfsame
