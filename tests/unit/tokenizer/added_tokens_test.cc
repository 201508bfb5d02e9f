#include "common/tokenizer/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace selfsame {
namespace {

using ::testing::ElementsAre;

// Text as it is, tokens as "#id".
std::vector<std::string> Split(std::vector<AddedToken> tokens, std::string_view text) {
  std::vector<std::string> segments;
  const AddedTokenMatcher matcher(std::move(tokens));
  for (const AddedTokenMatcher::Segment& segment : matcher.Split(text)) {
    segments.push_back(segment.token_id == AddedTokenMatcher::kNoToken
                           ? std::string(segment.text)
                           : absl::StrCat("#", segment.token_id));
  }
  return segments;
}

TEST(AddedTokensTest, TheLongestTokenWinsAtEachPlace) {
  const std::vector<AddedToken> tokens = {
      {.id = 1, .content = "<a>"}, {.id = 2, .content = "<a><b>"}, {.id = 3, .content = "b>c"}};
  EXPECT_THAT(Split(tokens, "x<a><b>c<a>"), ElementsAre("x", "#2", "c", "#1"));
  EXPECT_THAT(Split(tokens, "<a><bb>c"), ElementsAre("#1", "<b", "#3"));
  EXPECT_THAT(Split(tokens, "<a"), ElementsAre("<a"));
  EXPECT_THAT(Split(tokens, ""), ElementsAre());
}

TEST(AddedTokensTest, StripTakesWhiteSpaceAlong) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "L", .lstrip = true},
                                          {.id = 2, .content = "R", .rstrip = true}};
  EXPECT_THAT(Split(tokens, "a \u3000\nL b"), ElementsAre("a", "#1", " b"));
  EXPECT_THAT(Split(tokens, "a R\u00A0 b"), ElementsAre("a ", "#2", "b"));
  EXPECT_THAT(Split(tokens, "R  L"), ElementsAre("#2", "#1"));
  EXPECT_THAT(Split(tokens, "a\u200BL"), ElementsAre("a\u200B", "#1"));
}

TEST(AddedTokensTest, SingleWordNeedsNoWordCharacterBesideIt) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "W", .single_word = true}};
  EXPECT_THAT(Split(tokens, "W W. (W)"), ElementsAre("#1", " ", "#1", ". (", "#1", ")"));
  EXPECT_THAT(Split(tokens, "xW Wé W_ W1 W\u0301"), ElementsAre("xW Wé W_ W1 W\u0301"));
}

TEST(AddedTokensTest, ATokenInTheWrongSurroundingsUsesUpItsText) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "ab", .single_word = true},
                                          {.id = 2, .content = "a"},
                                          {.id = 3, .content = "bc"}};
  EXPECT_THAT(Split(tokens, "abc a"), ElementsAre("abc ", "#2"));
}

}  // namespace
}  // namespace selfsame
