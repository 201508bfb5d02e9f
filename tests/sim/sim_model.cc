#include "tests/sim/sim_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/kv/sequence_state.h"
#include "tests/unit/model/fake_ops.h"

namespace selfsame::sim {
namespace {

// One layer whose block holds a word for each of its positions.
constexpr AttentionShape kShape{.head_count = 1, .kv_head_count = 1, .head_dim = 2};

char* SlotData(const KvCache& kv, const int32_t* block_table, int32_t position) {
  const int64_t slot =
      int64_t{block_table[position / kKvBlockTokens]} * kKvBlockTokens + position % kKvBlockTokens;
  return reinterpret_cast<char*>(kv.layer(0).data) + slot * static_cast<int64_t>(sizeof(uint64_t));
}

int32_t TokenOf(uint64_t hash) {
  if (hash % 64 == 0) return kEndToken;
  return kFirstLetter + static_cast<int32_t>((hash >> 8) % kLetterCount);
}

// Edits are a set: their order must not show.
uint64_t HashOf(std::span<const LogitEdit> edits) {
  uint64_t sum = 0;
  for (const LogitEdit& edit : edits) {
    uint64_t hash =
        Combine(static_cast<uint64_t>(edit.token_id), std::bit_cast<uint32_t>(edit.bias));
    hash = Combine(hash, std::bit_cast<uint32_t>(edit.repetition));
    sum += Combine(hash, std::bit_cast<uint32_t>(edit.penalty));
  }
  return sum;
}

bool IsBanned(int32_t token_id, std::span<const LogitEdit> edits) {
  return std::any_of(edits.begin(), edits.end(), [token_id](const LogitEdit& edit) {
    return edit.token_id == token_id && std::isinf(edit.bias);
  });
}

}  // namespace

SampledToken Prefix::Next(const SampleRow& sampling, uint64_t weights) const {
  uint64_t hash = Combine(hash_, weights);
  hash = Combine(hash, std::bit_cast<uint32_t>(sampling.temperature));
  hash = Combine(hash, static_cast<uint64_t>(sampling.top_k));
  hash = Combine(hash, std::bit_cast<uint32_t>(sampling.top_p));
  hash = Combine(hash, sampling.seed);
  hash = Combine(hash, static_cast<uint64_t>(sampling.choice_index));
  hash = Combine(hash, static_cast<uint64_t>(sampling.position));
  hash = Combine(hash, std::bit_cast<uint32_t>(sampling.min_p));
  hash = Combine(hash, HashOf(sampling.edits));
  while (IsBanned(TokenOf(hash), sampling.edits)) hash = Combine(hash, 1);
  if (sampling.given_token >= 0) hash = Combine(hash, static_cast<uint64_t>(sampling.given_token));
  SampledToken token{
      .token_id = TokenOf(hash), .logprob = -static_cast<float>(hash >> 44) / 65536.0f, .top = {}};
  if (sampling.given_token >= 0) token.token_id = sampling.given_token;
  for (int32_t i = 0; i < sampling.top_count; ++i) {
    hash = Combine(hash, static_cast<uint64_t>(i));
    token.top.push_back({TokenOf(hash), -static_cast<float>(hash >> 44) / 65536.0f});
  }
  return token;
}

std::unique_ptr<KvCache> SimModel::CreateCache(int32_t block_count, Random random) {
  SELFSAME_CHECK(KvCache::BlockBytes(kShape, 1) == kKvBlockTokens * sizeof(uint64_t));
  FakeOps ops;
  auto kv = KvCache::Create(kShape, 1, block_count, ops);
  SELFSAME_CHECK(kv.ok());
  for (int32_t block = 0; block < block_count; ++block) {
    for (int32_t position = 0; position < kKvBlockTokens; ++position) {
      const uint64_t garbage = random.Next();
      std::memcpy(SlotData(**kv, &block, position), &garbage, sizeof(garbage));
    }
  }
  return *std::move(kv);
}

std::vector<const SequenceRows*> SimModel::CheckRows(const Pass& pass, const KvCache& kv) {
  std::vector<const SequenceRows*> owners(static_cast<size_t>(pass.row_count));
  if (pass.row_count > limits_.max_rows) world_.Fail("a pass has too many rows");
  if (static_cast<int32_t>(pass.logit_rows.size()) > limits_.max_logit_rows) {
    world_.Fail("a pass has too many logit rows");
  }
  for (const SequenceRows& sequence : pass.sequences) {
    const int32_t end = sequence.first_position + sequence.row_count;
    if (end > limits_.context_limit) world_.Fail("a row lies beyond the context limit");
    for (int32_t i = 0; i < BlocksFor(end); ++i) {
      const int32_t block = sequence.block_table[i];
      SELFSAME_CHECK(block >= 0 && block < kv.block_count());
    }
    for (int32_t i = 0; i < sequence.row_count; ++i) {
      const auto row = static_cast<size_t>(sequence.first_row + i);
      if (owners[row] != nullptr) world_.Fail("a row belongs to two sequences");
      if (pass.positions[row] != sequence.first_position + i) world_.Fail("a row's position");
      if (pass.token_ids[row] < 0 || pass.token_ids[row] >= kVocabSize) world_.Fail("a token id");
      owners[row] = &sequence;
    }
  }
  return owners;
}

// A block that is written may be in no other sequence's table.
void SimModel::CheckWriters(const Pass& pass) {
  std::map<int32_t, const SequenceRows*> writers;
  for (const SequenceRows& sequence : pass.sequences) {
    const int32_t end = BlocksFor(sequence.first_position + sequence.row_count);
    for (int32_t i = sequence.first_position / kKvBlockTokens; i < end; ++i) {
      if (!writers.emplace(sequence.block_table[i], &sequence).second) {
        world_.Fail(absl::StrCat("block ", sequence.block_table[i], " has two writers"));
      }
    }
  }
  for (const SequenceRows& sequence : pass.sequences) {
    const int32_t end = BlocksFor(sequence.first_position + sequence.row_count);
    for (int32_t i = 0; i < end; ++i) {
      const auto writer = writers.find(sequence.block_table[i]);
      const bool is_own = i >= sequence.first_position / kKvBlockTokens;
      if (writer != writers.end() && (writer->second != &sequence || !is_own)) {
        world_.Fail(absl::StrCat("block ", sequence.block_table[i], " is read and written"));
      }
    }
  }
}

Prefix SimModel::ReadPrefix(const SequenceRows& sequence, int32_t length, const KvCache& kv) {
  Prefix prefix;
  for (int32_t position = 0; position < length; ++position) {
    uint64_t slot = 0;
    std::memcpy(&slot, SlotData(kv, sequence.block_table, position), sizeof(slot));
    prefix.AppendSlot(slot);
  }
  return prefix;
}

absl::Status SimModel::Run(const Pass& pass, KvCache& kv, std::span<const SampleRow> sampling,
                           std::span<SampledToken> out) {
  const std::vector<const SequenceRows*> owners = CheckRows(pass, kv);
  CheckWriters(pass);
  for (size_t row = 0; row < owners.size(); ++row) {
    if (owners[row] == nullptr) continue;
    const int32_t position = pass.positions[row];
    const int32_t* const block_table = owners[row]->block_table;
    uint64_t before = 0;
    if (position > 0) {
      std::memcpy(&before, SlotData(kv, block_table, position - 1), sizeof(before));
    }
    const uint64_t slot = Prefix::Slot(before, pass.token_ids[row]);
    std::memcpy(SlotData(kv, block_table, position), &slot, sizeof(slot));
  }
  SELFSAME_CHECK(sampling.size() == pass.logit_rows.size() && out.size() == sampling.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto row = static_cast<size_t>(pass.logit_rows[i]);
    SELFSAME_CHECK(owners[row] != nullptr);
    const int32_t position = pass.positions[row];
    const bool is_given = sampling[i].given_token >= 0;
    if (!is_given && sampling[i].position != position + 1) {
      world_.Fail("a sampling row's position");
    }
    out[i] = ReadPrefix(*owners[row], position + 1, kv).Next(sampling[i], weights_);
    if (log_ != nullptr && !is_given) out[i] = Propose(out[i], sampling[i]);
  }
  return absl::OkStatus();
}

SampledToken SimModel::Propose(const SampledToken& canonical, const SampleRow& sampling) {
  std::vector<Proposal>& proposals = (*log_)[sampling.seed];
  const auto position = static_cast<size_t>(sampling.position);
  if (proposals.size() <= position) proposals.resize(position + 1);
  Proposal& proposal = proposals[position];
  const bool is_first_attempt = proposal.token_id < 0;
  SampledToken token = canonical;
  if (Errs(sampling, is_first_attempt)) {
    token.token_id = TokenOf(random_.Next());
    if (token.token_id == canonical.token_id) {
      token.token_id = canonical.token_id == kEndToken ? kFirstLetter : kEndToken;
    }
    ++mismatch_count_;
  }
  proposal = {
      .token_id = token.token_id, .canonical = canonical.token_id, .logprob = token.logprob};
  return token;
}

bool SimModel::Errs(const SampleRow& sampling, bool is_first_attempt) {
  const int32_t position = sampling.position;
  switch (static_cast<Mismatch>(sampling.seed % kMismatchKinds)) {
    case Mismatch::kNever:
      return false;
    case Mismatch::kRare:
      return random_.Chance(25);
    case Mismatch::kOften:
      return random_.Chance(250);
    case Mismatch::kAlways:
      return true;
    case Mismatch::kRuns:
      return position / 4 % 3 == 0;
    case Mismatch::kFirstOfEight:
      return position % 8 == 0;
    case Mismatch::kLastOfEight:
      return position % 8 == 7;
    case Mismatch::kFirstAttempt:
      return is_first_attempt && position % 5 == 0;
  }
  return false;
}

}  // namespace selfsame::sim
