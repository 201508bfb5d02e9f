#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/kv_cache.h"
#include "common/model/forward_model.h"
#include "tests/sim/random.h"
#include "tests/sim/world.h"

namespace selfsame::sim {

inline constexpr int32_t kVocabSize = 512;
inline constexpr int32_t kEndToken = 2;
// Tokens of the letters 'a' to 'l' in the tiny tokeniser: all that answers are made of, so that
// stop strings of two letters are found now and then.
inline constexpr int32_t kFirstLetter = 3 + 'a';
inline constexpr int32_t kLetterCount = 12;

// The arithmetic of the simulation: the token after a prefix is a hash of the tokens of the whole
// prefix, the parameters of the row and the weights.
class Prefix {
 public:
  // What one token leaves in its slot of the KV cache, after what stands in the slot before, which
  // is 0 for the first: like KV, it depends on the whole prefix.
  static uint64_t Slot(uint64_t slot_before, int32_t token_id) {
    return Combine(slot_before, static_cast<uint64_t>(token_id));
  }
  void AppendSlot(uint64_t slot) {
    slot_ = slot;
    hash_ = Combine(hash_, slot);
  }
  void Append(int32_t token_id) { AppendSlot(Slot(slot_, token_id)); }
  SampledToken Next(const SampleRow& sampling, uint64_t weights) const;

 private:
  uint64_t slot_ = 0;  // the newest
  uint64_t hash_ = 0;
};

// How the fast path errs on one request. The lowest bits of a request's seed choose.
enum class Mismatch {
  kNever,
  kRare,
  kOften,
  kAlways,
  kRuns,  // of four positions
  kFirstOfEight,
  kLastOfEight,
  kFirstAttempt,  // at some positions, and not again once they are decoded anew
};
inline constexpr uint64_t kMismatchKinds = 8;

// What the fast path proposed last for each position of each request, which its seed identifies.
struct Proposal {
  int32_t token_id = -1;
  int32_t canonical = -1;  // by the KV the proposal was made from
  float logprob = 0.0f;
};
using ProposalLog = std::map<uint64_t, std::vector<Proposal>>;  // by seed, then position

// The forward pass of the simulation. It has no state but the KV cache it is given: a row writes
// its slot there, and its token is made of what stands in the slots of its whole block table, so
// that a wrong table, a block in two hands, a stale slot or a wrong length give a wrong token.
class SimModel final : public ForwardModel {
 public:
  // With a log it is a fast path, which errs as the request's seed says and writes down what it
  // proposes; without one it is canonical.
  SimModel(World& world, const PassLimits& limits, uint64_t weights, Random random,
           ProposalLog* log)
      : world_(world), limits_(limits), weights_(weights), random_(random), log_(log) {}

  // A cache full of garbage.
  static std::unique_ptr<KvCache> CreateCache(int32_t block_count, Random random);

  absl::Status Run(const Pass& pass, KvCache& kv, std::span<const SampleRow> sampling,
                   std::span<SampledToken> out) override;
  const PassLimits& limits() const override { return limits_; }
  int32_t vocab_size() const override { return kVocabSize; }

  int64_t mismatch_count() const { return mismatch_count_; }

 private:
  // The sequence of each row; null for padding.
  std::vector<const SequenceRows*> CheckRows(const Pass& pass, const KvCache& kv);
  void CheckWriters(const Pass& pass);
  static Prefix ReadPrefix(const SequenceRows& sequence, int32_t length, const KvCache& kv);
  SampledToken Propose(const SampledToken& canonical, const SampleRow& sampling);
  bool Errs(const SampleRow& sampling, bool is_first_attempt);

  World& world_;
  const PassLimits limits_;
  const uint64_t weights_;
  Random random_;
  ProposalLog* const log_;
  int64_t mismatch_count_ = 0;
};

}  // namespace selfsame::sim
