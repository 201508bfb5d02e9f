#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace selfsame {

// What a byte-level BPE model is made of, as tokenizer.json gives it.
struct BpeSpec {
  // Vocabulary entries, spelled in the byte-level alphabet. Ids need not be contiguous.
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  // In order of priority, the first merge being the strongest.
  std::vector<std::pair<std::string, std::string>> merges;
  // A word that is itself an entry becomes that token, without merging.
  bool ignore_merges = false;
  // What a byte without an entry becomes; when unset such a byte is dropped.
  std::optional<std::string> unknown_token;
  // Neighbouring unknown bytes become one unknown token.
  bool fuse_unknown = false;
};

// Byte-level byte-pair encoding of one word. Immutable, thread safe.
class BpeModel {
 public:
  // Working memory of EncodeWord, kept between words to save allocations. One per thread.
  struct Scratch {
    struct Merge {
      int32_t rank;
      int32_t token_id;
    };
    struct Candidate {
      int32_t rank;
      int32_t position;
      int32_t token_id;
    };
    std::vector<int32_t> ids;
    std::vector<Merge> pair_merges;
    std::vector<int32_t> previous;
    std::vector<int32_t> next;
    std::vector<Candidate> heap;
  };

  // Returns InvalidArgumentError naming the entry at fault ("merges[3]").
  static absl::StatusOr<BpeModel> Create(BpeSpec spec);

  // Appends the tokens of `word` (raw bytes) to `ids`: of all neighbouring pairs with a merge the
  // strongest is merged first, the leftmost of equals, until none is left. O(n log n) in the length
  // of the word. REQUIRES: word.size() < 2^31.
  void EncodeWord(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

  // The id of a vocabulary entry given by its spelling.
  std::optional<int32_t> Find(std::string_view spelling) const;

  // One more than the largest id.
  int32_t id_limit() const { return static_cast<int32_t>(spellings_.size()); }

  // The spelling of an id below id_limit(); empty for an id that no entry has.
  const std::string& spelling(int32_t id) const { return spellings_[id]; }

 private:
  using Merge = Scratch::Merge;

  BpeModel() = default;
  absl::Status AddVocabulary(const std::vector<std::pair<std::string, int32_t>>& vocabulary);
  absl::Status AddMerges(const std::vector<std::pair<std::string, std::string>>& merges);
  Merge FindMerge(int32_t left, int32_t right) const;
  void SplitToBytes(std::string_view word, std::vector<int32_t>* ids) const;
  // Both reduce scratch->ids in place and give the same result: one looks at all pairs for each
  // merge, which wins on short words, the other keeps a heap.
  void MergeByScan(Scratch* scratch) const;
  void MergeByHeap(Scratch* scratch) const;

  std::vector<std::string> spellings_;  // [id]
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // left id << 32 | right id
  std::array<int32_t, 256> byte_ids_;            // -1: the byte has no entry
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_id_ = -1;
};

}  // namespace selfsame
