#include "common/tokenizer/bpe.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/utf8.h"

namespace selfsame {
namespace {

constexpr int32_t kNoMerge = std::numeric_limits<int32_t>::max();

// Above this many bytes the heap is faster than looking at all pairs again for each merge.
constexpr size_t kMaxScanSize = 48;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Create(BpeSpec spec) {
  BpeModel model;
  RETURN_IF_ERROR(model.AddVocabulary(spec.vocabulary));
  RETURN_IF_ERROR(model.AddMerges(spec.merges));
  model.ignore_merges_ = spec.ignore_merges;
  model.fuse_unknown_ = spec.fuse_unknown;
  if (spec.unknown_token.has_value()) {
    const std::optional<int32_t> id = model.Find(*spec.unknown_token);
    if (!id.has_value()) return InvalidArgumentError("unk_token", "is not in the vocabulary");
    model.unknown_id_ = *id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &spelling);
    model.byte_ids_[byte] = model.Find(spelling).value_or(-1);
  }
  return model;
}

absl::Status BpeModel::AddVocabulary(
    const std::vector<std::pair<std::string, int32_t>>& vocabulary) {
  ids_.reserve(vocabulary.size());
  std::vector<bool> is_taken;
  for (const auto& [spelling, id] : vocabulary) {
    const std::string field = absl::StrCat("vocab[\"", spelling, "\"]");
    if (id < 0 || id >= kMaxVocabSize) {
      return InvalidArgumentError(field,
                                  absl::StrCat("id ", id, " is not in [0, ", kMaxVocabSize, ")"));
    }
    if (static_cast<size_t>(id) >= spellings_.size()) {
      spellings_.resize(id + 1);
      is_taken.resize(id + 1);
    }
    if (is_taken[id]) {
      return InvalidArgumentError(
          field, absl::StrCat("id ", id, " also belongs to \"", spellings_[id], "\""));
    }
    is_taken[id] = true;
    spellings_[id] = spelling;
    ids_.emplace(spelling, id);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddMerges(const std::vector<std::pair<std::string, std::string>>& merges) {
  if (merges.size() >= static_cast<size_t>(kMaxVocabSize)) {
    return InvalidArgumentError("merges", absl::StrCat("has more than ", kMaxVocabSize));
  }
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::optional<int32_t> left_id = Find(left);
    const std::optional<int32_t> right_id = Find(right);
    const std::optional<int32_t> merged_id = Find(left + right);
    if (!left_id || !right_id || !merged_id) {
      const std::string& missing = !left_id ? left : !right_id ? right : left + right;
      return InvalidArgumentError(absl::StrCat("merges[", rank, "]"),
                                  absl::StrCat("\"", missing, "\" is not in the vocabulary"));
    }
    merges_.insert_or_assign(PairKey(*left_id, *right_id),
                             Merge{static_cast<int32_t>(rank), *merged_id});
  }
  return absl::OkStatus();
}

std::optional<int32_t> BpeModel::Find(std::string_view spelling) const {
  const auto found = ids_.find(absl::string_view(spelling.data(), spelling.size()));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

BpeModel::Merge BpeModel::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? Merge{kNoMerge, -1} : found->second;
}

void BpeModel::EncodeWord(std::string_view word, Scratch* scratch,
                          std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    if (const std::optional<int32_t> id = Find(SpellBytes(word)); id.has_value()) {
      ids->push_back(*id);
      return;
    }
  }
  SplitToBytes(word, &scratch->ids);
  if (scratch->ids.size() <= kMaxScanSize) {
    MergeByScan(scratch);
  } else {
    MergeByHeap(scratch);
  }
  ids->insert(ids->end(), scratch->ids.begin(), scratch->ids.end());
}

void BpeModel::SplitToBytes(std::string_view word, std::vector<int32_t>* ids) const {
  ids->clear();
  bool after_unknown = false;
  for (const char byte : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) {
      ids->push_back(id);
    } else if (unknown_id_ >= 0 && !(after_unknown && fuse_unknown_)) {
      ids->push_back(unknown_id_);
    }
    after_unknown = id < 0;
  }
}

void BpeModel::MergeByScan(Scratch* scratch) const {
  std::vector<int32_t>& ids = scratch->ids;
  std::vector<Merge>& merges = scratch->pair_merges;  // [i]: of ids[i] and ids[i + 1]
  merges.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) merges.push_back(FindMerge(ids[i], ids[i + 1]));
  while (!merges.empty()) {
    const auto best = std::min_element(merges.begin(), merges.end(),
                                       [](Merge a, Merge b) { return a.rank < b.rank; });
    if (best->rank == kNoMerge) return;
    const size_t i = best - merges.begin();
    ids[i] = best->token_id;
    ids.erase(ids.begin() + i + 1);
    merges.erase(best);
    if (i < merges.size()) merges[i] = FindMerge(ids[i], ids[i + 1]);
    if (i > 0) merges[i - 1] = FindMerge(ids[i - 1], ids[i]);
  }
}

void BpeModel::MergeByHeap(Scratch* scratch) const {
  using Candidate = Scratch::Candidate;
  std::vector<int32_t>& ids = scratch->ids;
  const int32_t count = static_cast<int32_t>(ids.size());
  std::vector<int32_t>& previous = scratch->previous;
  std::vector<int32_t>& next = scratch->next;
  std::vector<Candidate>& heap = scratch->heap;
  const auto is_weaker = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  previous.resize(count);
  next.resize(count);
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
    if (i + 1 == count) break;
    const Merge merge = FindMerge(ids[i], ids[i + 1]);
    if (merge.rank != kNoMerge) heap.push_back({merge.rank, i, merge.token_id});
  }
  std::make_heap(heap.begin(), heap.end(), is_weaker);
  const auto push = [&](int32_t left, int32_t right) {
    const Merge merge = FindMerge(ids[left], ids[right]);
    if (merge.rank == kNoMerge) return;
    heap.push_back({merge.rank, left, merge.token_id});
    std::push_heap(heap.begin(), heap.end(), is_weaker);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_weaker);
    const Candidate best = heap.back();
    heap.pop_back();
    // Symbols only ever grow, so a candidate is current exactly when its pair still gives its
    // token; a symbol that was swallowed has id -1 and is in no pair.
    const int32_t left = best.position;
    const int32_t right = next[left];
    if (ids[left] < 0 || right == count) continue;
    if (FindMerge(ids[left], ids[right]).token_id != best.token_id) continue;
    ids[left] = best.token_id;
    ids[right] = -1;
    next[left] = next[right];
    if (next[left] < count) {
      previous[next[left]] = left;
      push(left, next[left]);
    }
    if (previous[left] >= 0) push(previous[left], left);
  }
  std::erase(ids, -1);
}

}  // namespace selfsame
