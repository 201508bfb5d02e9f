#include "common/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace selfsame {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Encode(const BpeModel& model, std::string_view word) {
  BpeModel::Scratch scratch;
  std::vector<int32_t> ids;
  model.EncodeWord(word, &scratch, &ids);
  return ids;
}

BpeSpec SmallSpec() {
  BpeSpec spec;
  spec.vocabulary = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}, {"abc", 5}, {"?", 7}};
  spec.merges = {{"b", "c"}, {"a", "b"}, {"a", "bc"}};
  return spec;
}

TEST(BpeTest, MergesTheStrongestPairFirst) {
  const BpeModel model = *BpeModel::Create(SmallSpec());
  EXPECT_THAT(Encode(model, ""), IsEmpty());
  EXPECT_THAT(Encode(model, "ab"), ElementsAre(3));
  EXPECT_THAT(Encode(model, "abc"), ElementsAre(5)) << "b c, then a bc";
  EXPECT_THAT(Encode(model, "abab"), ElementsAre(3, 3));
  EXPECT_THAT(Encode(model, "aabcc"), ElementsAre(0, 5, 2));
}

TEST(BpeTest, AByteWithoutAnEntryIsDroppedBeforeMerging) {
  const BpeModel model = *BpeModel::Create(SmallSpec());
  EXPECT_THAT(Encode(model, "xaxbx"), ElementsAre(3));
  EXPECT_THAT(Encode(model, "xyz"), IsEmpty());
}

TEST(BpeTest, AByteWithoutAnEntryBecomesTheUnknownToken) {
  BpeSpec spec = SmallSpec();
  spec.unknown_token = "?";
  const BpeModel model = *BpeModel::Create(spec);
  EXPECT_THAT(Encode(model, "axyb"), ElementsAre(0, 7, 7, 1));
  spec.fuse_unknown = true;
  const BpeModel fusing = *BpeModel::Create(spec);
  EXPECT_THAT(Encode(fusing, "axyb"), ElementsAre(0, 7, 1));
  EXPECT_THAT(Encode(fusing, "xaxy"), ElementsAre(7, 0, 7));
}

TEST(BpeTest, IgnoreMergesLooksUpTheWholeWord) {
  BpeSpec spec = SmallSpec();
  spec.merges = {{"a", "b"}};
  EXPECT_THAT(Encode(*BpeModel::Create(spec), "abc"), ElementsAre(3, 2));
  spec.ignore_merges = true;
  EXPECT_THAT(Encode(*BpeModel::Create(spec), "abc"), ElementsAre(5));
  EXPECT_THAT(Encode(*BpeModel::Create(spec), "abcb"), ElementsAre(3, 2, 1));
}

TEST(BpeTest, BadFilesNameTheEntry) {
  BpeSpec spec = SmallSpec();
  spec.merges.push_back({"c", "a"});
  EXPECT_EQ(FieldOf(BpeModel::Create(spec).status()), "merges[3]");
  spec = SmallSpec();
  spec.vocabulary.push_back({"d", 3});
  EXPECT_EQ(FieldOf(BpeModel::Create(spec).status()), "vocab[\"d\"]");
  spec = SmallSpec();
  spec.vocabulary.push_back({"d", -1});
  EXPECT_EQ(FieldOf(BpeModel::Create(spec).status()), "vocab[\"d\"]");
  spec = SmallSpec();
  spec.unknown_token = "<unk>";
  EXPECT_EQ(FieldOf(BpeModel::Create(spec).status()), "unk_token");
}

// The definition: merge the strongest pair, the leftmost of equals, until there is none.
std::vector<std::string> MergeNaively(
    const std::map<std::pair<std::string, std::string>, int>& ranks, std::string_view word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    size_t best = parts.size();
    int best_rank = std::numeric_limits<int>::max();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found == ranks.end() || found->second >= best_rank) continue;
      best = i;
      best_rank = found->second;
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + best + 1);
  }
}

TEST(BpeTest, ShortAndLongWordsFollowTheDefinition) {
  std::mt19937 random(20240726);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> entries = {"a", "b", "c"};
    std::set<std::string> known(entries.begin(), entries.end());
    std::map<std::pair<std::string, std::string>, int> ranks;
    BpeSpec spec;
    for (int i = 0; i < 40; ++i) {
      const std::string left = entries[random() % entries.size()];
      const std::string right = entries[random() % entries.size()];
      if (left.size() + right.size() > 12 || ranks.contains({left, right})) continue;
      ranks[{left, right}] = static_cast<int>(spec.merges.size());
      spec.merges.push_back({left, right});
      if (known.insert(left + right).second) entries.push_back(left + right);
    }
    std::shuffle(spec.merges.begin(), spec.merges.end(), random);
    for (size_t i = 0; i < spec.merges.size(); ++i) ranks[spec.merges[i]] = static_cast<int>(i);
    for (size_t i = 0; i < entries.size(); ++i) {
      spec.vocabulary.push_back({entries[i], static_cast<int32_t>(i)});
    }
    const BpeModel model = *BpeModel::Create(spec);
    for (const size_t size : {1, 2, 7, 20, 47, 48, 49, 50, 90, 200}) {
      std::string word;
      for (size_t i = 0; i < size; ++i) word += static_cast<char>('a' + random() % 3);
      std::vector<std::string> parts;
      for (const int32_t id : Encode(model, word)) parts.push_back(model.spelling(id));
      EXPECT_EQ(parts, MergeNaively(ranks, word)) << "round " << round << ", word " << word;
    }
  }
}

}  // namespace
}  // namespace selfsame
