#include "common/tokenizer/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "common/errors.h"
#include "common/limits.h"

namespace selfsame {
namespace {

StopMatcher Make(const std::vector<std::string>& strings) {
  absl::StatusOr<StopMatcher> matcher = StopMatcher::Create(strings);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

TEST(StopMatcherTest, FindsAStringAcrossPieces) {
  StopMatcher matcher = Make({"END"});
  EXPECT_EQ(matcher.Push("some textE").text, "some text");
  EXPECT_EQ(matcher.Push("N").text, "");
  const StopMatcher::Result result = matcher.Push("D and more");
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.matched, 0);
  EXPECT_EQ(matcher.matched(), 0);
  EXPECT_EQ(matcher.stop_string(0), "END");
}

TEST(StopMatcherTest, GivesOutHeldBackTextOnceItCannotMatch) {
  StopMatcher matcher = Make({"\n\nQ:"});
  EXPECT_EQ(matcher.Push("a\n").text, "a");
  EXPECT_EQ(matcher.Push("\n").text, "");
  EXPECT_EQ(matcher.Push("\n").text, "\n") << "the last two may still begin it";
  EXPECT_EQ(matcher.Push("Qx").text, "\n\nQx");
  EXPECT_EQ(matcher.Push("\n").text, "");
  EXPECT_EQ(matcher.Flush(), "\n");
  EXPECT_EQ(matcher.Push("Q:").text, "Q:") << "a flush forgets what came before";
  EXPECT_FALSE(matcher.matched().has_value());
}

TEST(StopMatcherTest, TheMatchThatIsCompleteFirstWins) {
  EXPECT_EQ(Make({"abcd", "bc"}).Push("abcd").matched, 1);
  EXPECT_EQ(Make({"abcd", "bc"}).Push("abcd").text, "a");
  EXPECT_EQ(Make({"y", "x"}).Push("xy").matched, 1);
}

TEST(StopMatcherTest, OfMatchesThatEndTogetherTheFirstListedWins) {
  EXPECT_EQ(Make({"bc", "abc"}).Push("abc").text, "a");
  EXPECT_EQ(Make({"abc", "bc"}).Push("abc").text, "");
  EXPECT_EQ(Make({"c", "abc", "c"}).Push("abc").matched, 0);
}

TEST(StopMatcherTest, TextAfterAMatchIsIgnored) {
  StopMatcher matcher = Make({"x"});
  EXPECT_EQ(matcher.Push("axb").text, "a");
  EXPECT_EQ(matcher.Push("c").text, "");
  EXPECT_FALSE(matcher.Push("x").matched.has_value());
  EXPECT_EQ(matcher.matched(), 0);
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, AnEmptyListPassesEverything) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Push("anything").text, "anything");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, ACopyIsASnapshot) {
  StopMatcher matcher = Make({"stop"});
  matcher.Push("st");
  StopMatcher snapshot = matcher;
  EXPECT_EQ(matcher.Push("op").matched, 0);
  matcher = snapshot;
  EXPECT_EQ(matcher.Push("ay").text, "stay");
  EXPECT_EQ(snapshot.Flush(), "st");
}

TEST(StopMatcherTest, BadStopStringsNameTheField) {
  const auto field = [](const std::vector<std::string>& strings) {
    return FieldOf(StopMatcher::Create(strings, "stop").status()).value_or("none");
  };
  EXPECT_EQ(field({"a", ""}), "stop[1]");
  EXPECT_EQ(field({"\xC3"}), "stop[0]");
  EXPECT_EQ(field({std::string(kMaxStopStringBytes + 1, 'a')}), "stop[0]");
  EXPECT_EQ(field({std::string(kMaxStopStringBytes, 'a')}), "none");
  EXPECT_EQ(field(std::vector<std::string>(kMaxStopStrings + 1, "a")), "stop");
}

// How many bytes at the end of `text` begin a stop string without being all of it.
size_t HeldBackSize(const std::vector<std::string>& strings, std::string_view text) {
  for (size_t size = text.size(); size > 0; --size) {
    for (const std::string& string : strings) {
      if (size < string.size() && string.starts_with(text.substr(text.size() - size))) return size;
    }
  }
  return 0;
}

TEST(StopMatcherTest, FollowsTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 random(5);
  const auto random_text = [&](int size) {
    std::string text;
    for (int i = 0; i < size; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::string> strings;
    for (uint32_t i = 0; i <= random() % 3; ++i) strings.push_back(random_text(1 + random() % 6));
    const std::string text = random_text(24);
    std::optional<int> expected;
    size_t end = 0;  // of the match
    while (!expected.has_value() && end < text.size()) {
      ++end;
      const std::string_view so_far = std::string_view(text).substr(0, end);
      const auto found = std::find_if(strings.begin(), strings.end(),
                                      [&](const auto& s) { return so_far.ends_with(s); });
      if (found != strings.end()) expected = static_cast<int>(found - strings.begin());
    }
    StopMatcher matcher = Make(strings);
    std::string out;
    for (size_t at = 0; at < text.size() && !matcher.matched().has_value();) {
      const size_t size = std::min(text.size() - at, size_t{1} + random() % 4);
      out += matcher.Push(std::string_view(text).substr(at, size)).text;
      at += size;
      if (!matcher.matched().has_value()) {
        const std::string_view so_far = std::string_view(text).substr(0, at);
        EXPECT_EQ(out, so_far.substr(0, at - HeldBackSize(strings, so_far)));
      }
    }
    EXPECT_EQ(matcher.matched(), expected);
    if (expected.has_value()) {
      ++matches;
      EXPECT_EQ(out, text.substr(0, end - strings[*expected].size()));
    } else {
      EXPECT_EQ(out + matcher.Flush(), text);
    }
  }
  EXPECT_GT(matches, 100);
  EXPECT_LT(matches, 3990);
}

}  // namespace
}  // namespace selfsame
