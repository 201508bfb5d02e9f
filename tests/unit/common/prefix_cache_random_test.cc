// Sequences that share prefixes, over seeded random orders of events, against a model that is plain
// to see through: what stands in a slot of the cache is a hash of all tokens up to there. Whatever
// a sequence sees through its block table must be that of exactly its own tokens.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/kv/sequence_state.h"

namespace selfsame {
namespace {

constexpr int32_t kBlocks = 10;
constexpr int32_t kMaxLength = 100;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  int32_t Below(int32_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<int32_t>((state_ >> 33) % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

struct Sequence {
  explicit Sequence(BlockPool& pool, int32_t adapter)
      : adapter(adapter), state(std::make_unique<PagedSequenceState>(pool, adapter)) {}
  auto At() const {
    return [this](int32_t position) { return tokens.at(static_cast<size_t>(position)); };
  }

  int32_t adapter;
  std::vector<int32_t> tokens;
  int32_t committed = 0;  // tokens that will not change
  std::unique_ptr<PagedSequenceState> state;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  void Step() {
    if (sequences_.empty() || (sequences_.size() < 6 && random_.Below(8) == 0)) {
      Start();
      return;
    }
    const auto index = static_cast<size_t>(random_.Below(static_cast<int32_t>(sequences_.size())));
    Sequence& sequence = sequences_[index];
    switch (random_.Below(8)) {
      case 0:
        Finish(index);
        break;
      case 1:
        sequence.state->Truncate(0);  // preempted or evicted
        break;
      case 2:
        RollBack(sequence);
        break;
      case 3:
        Commit(sequence);
        break;
      default:
        Compute(sequence);
        break;
    }
  }

  void Check() const {
    std::set<int32_t> held;
    for (const Sequence& sequence : sequences_) {
      const SequenceState& state = *sequence.state;
      held.insert(state.block_table(), state.block_table() + state.block_count());
      uint64_t hash = static_cast<uint64_t>(sequence.adapter);
      for (int32_t position = 0; position < state.length(); ++position) {
        hash = Next(hash, sequence.tokens.at(static_cast<size_t>(position)));
        ASSERT_EQ(slots_[SlotOf(state, position)], hash) << "position " << position;
      }
    }
    ASSERT_EQ(pool_.free_count(), kBlocks - static_cast<int32_t>(held.size()));
    ASSERT_LE(pool_.cached_count(), pool_.free_count());
  }

  int64_t hits() const { return hits_; }
  int64_t later_hits() const { return later_hits_; }
  int64_t refusals() const { return refusals_; }
  // Everything ends.
  void Clear() { sequences_.clear(); }

 private:
  static uint64_t Next(uint64_t hash, int32_t token) {
    return (hash ^ static_cast<uint64_t>(token + 1)) * 0x100000001b3u + 11;
  }
  static size_t SlotOf(const SequenceState& state, int32_t position) {
    return static_cast<size_t>(state.block_table()[position / kKvBlockTokens] * kKvBlockTokens +
                               position % kKvBlockTokens);
  }

  // Long runs of one token, so that prefixes are often the same and often differ late.
  int32_t DrawToken() { return random_.Below(16) == 0 ? 1 : 0; }

  void Start() {
    Sequence sequence(pool_, random_.Below(5) == 0 ? 1 : 0);
    const int32_t prompt = 1 + random_.Below(kMaxLength / 2);
    for (int32_t i = 0; i < prompt; ++i) sequence.tokens.push_back(DrawToken());
    sequence.committed = prompt;
    sequences_.push_back(std::move(sequence));
  }

  void Finish(size_t index) { sequences_.erase(sequences_.begin() + static_cast<int64_t>(index)); }

  // What is not committed becomes something else.
  void RollBack(Sequence& sequence) {
    sequence.tokens.resize(static_cast<size_t>(sequence.committed));
    if (sequence.committed < kMaxLength) {
      sequence.tokens.push_back(DrawToken());
      ++sequence.committed;
    }
    sequence.state->Truncate(sequence.committed - 1);
    sequence.state->Publish(sequence.At(), sequence.committed);
  }

  void Commit(Sequence& sequence) {
    const auto length = static_cast<int32_t>(sequence.tokens.size());
    sequence.committed += random_.Below(length - sequence.committed + 1);
    sequence.state->Publish(sequence.At(), sequence.committed);
  }

  // A pass over some of what is missing, the last known token at most, which gives the next one.
  void Compute(Sequence& sequence) {
    SequenceState& state = *sequence.state;
    const auto length = static_cast<int32_t>(sequence.tokens.size());
    const int32_t before = state.length();
    if (before == 0 || random_.Below(2) == 0) state.TakeCached(sequence.At(), length - 1);
    (before == 0 ? hits_ : later_hits_) += state.length() - before;
    const int32_t end = state.length() + 1 + random_.Below(length - state.length());
    if (!state.Reserve(end)) {
      ++refusals_;
      return;
    }
    uint64_t hash = static_cast<uint64_t>(sequence.adapter);
    for (int32_t position = 0; position < end; ++position) {
      hash = Next(hash, sequence.tokens.at(static_cast<size_t>(position)));
      if (position >= state.length()) slots_[SlotOf(state, position)] = hash;
    }
    state.Advance(end);
    state.Publish(sequence.At(), sequence.committed);
    if (end == length && length < kMaxLength) {
      sequence.tokens.push_back(DrawToken());
    } else if (end == length) {
      state.Truncate(0);
    }
  }

  Random random_;
  BlockPool pool_{kBlocks};
  std::vector<uint64_t> slots_ = std::vector<uint64_t>(kBlocks * kKvBlockTokens);
  std::vector<Sequence> sequences_;
  int64_t hits_ = 0;
  int64_t later_hits_ = 0;  // of sequences with KV of their own
  int64_t refusals_ = 0;
};

TEST(PrefixCacheRandomTest, ASequenceSeesTheKvOfExactlyItsTokens) {
  int64_t hits = 0;
  int64_t later_hits = 0;
  int64_t refusals = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    for (int i = 0; i < 400 && !::testing::Test::HasFatalFailure(); ++i) {
      world.Step();
      world.Check();
    }
    hits += world.hits();
    later_hits += world.later_hits();
    refusals += world.refusals();
    world.Clear();
    world.Check();
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
  }
  EXPECT_GT(hits, 10000);
  EXPECT_GT(later_hits, 50);
  EXPECT_GT(refusals, 500);
}

}  // namespace
}  // namespace selfsame
