#include "common/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/errors.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/regex.h"

namespace selfsame {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = PreTokenizer::Kind;

std::vector<std::string> Split(std::string_view pattern, std::string_view text) {
  const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::string> pieces;
  EXPECT_TRUE(regex
                  ->Split(text,
                          [&](std::string_view piece) {
                            pieces.emplace_back(piece);
                            return absl::OkStatus();
                          })
                  .ok());
  return pieces;
}

std::vector<std::string> WordsOf(std::vector<PreTokenizer::Step> steps, std::string_view text) {
  std::vector<std::string> words;
  EXPECT_TRUE(PreTokenizer(std::move(steps))
                  .Run(text,
                       [&](std::string_view word) {
                         words.emplace_back(word);
                         return absl::OkStatus();
                       })
                  .ok());
  return words;
}

template <typename... Steps>
std::vector<PreTokenizer::Step> StepsOf(Steps... steps) {
  std::vector<PreTokenizer::Step> result;
  (result.push_back(std::move(steps)), ...);
  return result;
}

PreTokenizer::Step Plain(Kind kind) { return {kind, nullptr}; }

PreTokenizer::Step Gpt2() {
  return {Kind::kSplit, std::make_unique<const Regex>(*Regex::Compile(Gpt2Pattern()))};
}

TEST(RegexTest, MatchesAndTheTextBetweenAreBothPieces) {
  EXPECT_THAT(Split("b+", "abbcb"), ElementsAre("a", "bb", "c", "b"));
  EXPECT_THAT(Split("x", "abc"), ElementsAre("abc"));
  EXPECT_THAT(Split("x", ""), ElementsAre());
}

TEST(RegexTest, AnEmptyMatchCutsAndGoesOn) {
  EXPECT_THAT(Split("b*", "aébc"), ElementsAre("a", "é", "b", "c"));
}

TEST(RegexTest, WhiteSpaceIsTheUnicodeProperty) {
  EXPECT_THAT(Split(R"(\s+)", "a\u0085\u00A0\u3000b"), ElementsAre("a", "\u0085\u00A0\u3000", "b"));
  EXPECT_THAT(Split(R"(\s+)", "a\u180Eb\u200Bc"), ElementsAre("a\u180Eb\u200Bc"));
  EXPECT_THAT(Split(R"(\S+)", "a\u180E \u200B"), ElementsAre("a\u180E", " ", "\u200B"));
  EXPECT_THAT(Split(R"([^\s]+)", "a\u180E\u2028b"), ElementsAre("a\u180E", "\u2028", "b"));
}

TEST(RegexTest, LettersAndNumbersNewerThanPcre2sTablesAreKnown) {
  EXPECT_THAT(Split(R"(\p{L}+)", "a\U00031350!"), ElementsAre("a\U00031350", "!"));
  EXPECT_THAT(Split(R"(\P{L}+)", "a\U00031350!"), ElementsAre("a\U00031350", "!"));
  EXPECT_THAT(Split(R"(\p{N})", "\U00010D40½"), ElementsAre("\U00010D40", "½"));
  EXPECT_THAT(Split(R"([^\p{L}\p{N}]+)", "\U00031350!\U00010D40"),
              ElementsAre("\U00031350", "!", "\U00010D40"));
}

TEST(RegexTest, CaseIsFoldedAcrossUnicode) {
  EXPECT_THAT(Split("(?i:'s|'ll)", "a'S b'\u017F c'Ll"),
              ElementsAre("a", "'S", " b", "'\u017F", " c", "'Ll"));
}

TEST(RegexTest, ConstructsThatEnginesReadDifferentlyAreRejected) {
  for (const char* pattern : {R"(\w+)", R"(\bx)", R"(\h)", R"([\S])", R"([a[b]])", R"([a&&b])",
                              R"([]a])", R"([\P{L}])", R"(a\)"}) {
    const absl::Status status = Regex::Compile(pattern).status();
    EXPECT_EQ(FieldOf(status), "pattern") << pattern;
  }
  EXPECT_THAT(std::string(Regex::Compile("a(b").status().message()), HasSubstr("a(b"));
}

TEST(RegexTest, AnErrorOfTheSinkEndsTheSplit) {
  int calls = 0;
  const absl::Status status = Regex::Compile("b")->Split("abab", [&](std::string_view) {
    ++calls;
    return InternalError("enough");
  });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(calls, 1);
}

TEST(PreTokenizerTest, Gpt2Words) {
  EXPECT_THAT(WordsOf(StepsOf(Gpt2()), "Hello  world's 42!!\n\n x"),
              ElementsAre("Hello", " ", " world", "'s", " 42", "!!", "\n\n", " x"));
}

TEST(PreTokenizerTest, DigitsOneByOneOrInRuns) {
  EXPECT_THAT(WordsOf(StepsOf(Plain(Kind::kEachDigit)), "a12½b"),
              ElementsAre("a", "1", "2", "½", "b"));
  EXPECT_THAT(WordsOf(StepsOf(Plain(Kind::kDigitRuns)), "12½b3"), ElementsAre("12½", "b", "3"));
}

TEST(PreTokenizerTest, PrefixSpaceGoesBeforeEveryPieceWithoutOne) {
  EXPECT_THAT(WordsOf(StepsOf(Plain(Kind::kDigitRuns), Plain(Kind::kPrefixSpace), Gpt2()), "a1 b"),
              ElementsAre(" a", " 1", " b"));
  EXPECT_THAT(WordsOf(StepsOf(Plain(Kind::kPrefixSpace)), "\ta"), ElementsAre(" \ta"));
}

TEST(PreTokenizerTest, NoWordIsEmpty) {
  EXPECT_THAT(WordsOf(StepsOf(Gpt2()), ""), ElementsAre());
  EXPECT_THAT(WordsOf({}, ""), ElementsAre());
}

TEST(NormalizerTest, ComposesAndOrders) {
  EXPECT_EQ(NormalizeNfc("e\u0301 q\u0307\u0323 \u1112\u1161\u11AB \u2126"),
            "\u00E9 q\u0323\u0307 \uD55C \u03A9");
  EXPECT_EQ(NormalizeNfc(""), "");
}

TEST(NormalizerTest, MarksNewerThanUnicode9StayInPlace) {
  EXPECT_EQ(NormalizeNfc("a\u0301\u1ACF\u0323"), "\u00E1\u1ACF\u0323");
}

}  // namespace
}  // namespace selfsame
