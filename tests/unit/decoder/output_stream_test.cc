#include "decoder/engine/output_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_tokenizer.h"

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr int32_t kEos = 2;

// The token of one byte.
int32_t Byte(char c) { return 3 + static_cast<uint8_t>(c); }
// The token of two lower-case letters.
int32_t Pair(char a, char b) { return 259 + (a - 'a') * 26 + (b - 'a'); }

class OutputStreamTest : public ::testing::Test {
 protected:
  OutputStreamTest() {
    selfsame::testing::WriteTinyTokenizer(dir_.path(), 600);
    auto tokenizer = Tokenizer::Load(dir_.path());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  OutputStream Make(std::vector<std::string> stop_strings, int32_t max_tokens = 100,
                    std::vector<int32_t> stop_token_ids = {kEos}) {
    auto stream =
        OutputStream::Create(*tokenizer_, stop_strings, std::move(stop_token_ids), max_tokens);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  // Pushes until the end; the text of each token.
  static std::vector<std::string> PushAll(OutputStream& stream,
                                          const std::vector<int32_t>& tokens) {
    std::vector<std::string> texts;
    for (int32_t token : tokens) {
      if (stream.end()) break;
      texts.push_back(stream.Push(token));
    }
    return texts;
  }

  selfsame::testing::TempDir dir_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(OutputStreamTest, TextComesWithItsToken) {
  OutputStream stream = Make({});
  EXPECT_THAT(PushAll(stream, {Byte('a'), Pair('b', 'c')}), ElementsAre("a", "bc"));
  EXPECT_FALSE(stream.end().has_value());
}

TEST_F(OutputStreamTest, EndOfSequenceEndsAndHasNoText) {
  OutputStream stream = Make({});
  EXPECT_THAT(PushAll(stream, {Byte('a'), kEos, Byte('b')}), ElementsAre("a", ""));
  ASSERT_TRUE(stream.end().has_value());
  EXPECT_EQ(stream.end()->reason, FinishReason::kStop);
  EXPECT_EQ(stream.end()->stop_token_id, kEos);
  EXPECT_FALSE(stream.end()->stop_string.has_value());
  EXPECT_EQ(stream.token_count(), 2);
}

TEST_F(OutputStreamTest, AStopTokenThatIsNotSpecialKeepsItsText) {
  OutputStream stream = Make({}, 100, {kEos, Byte('x')});
  EXPECT_THAT(PushAll(stream, {Byte('a'), Byte('x')}), ElementsAre("a", "x"));
  EXPECT_EQ(stream.end()->stop_token_id, Byte('x'));
}

TEST_F(OutputStreamTest, MaxTokensEnds) {
  OutputStream stream = Make({}, 2);
  EXPECT_THAT(PushAll(stream, {Byte('a'), Byte('b'), Byte('c')}), ElementsAre("a", "b"));
  EXPECT_EQ(stream.end()->reason, FinishReason::kLength);
  EXPECT_FALSE(stream.end()->stop_token_id.has_value());
}

TEST_F(OutputStreamTest, AStopTokenInTheLastPlaceIsAStop) {
  OutputStream stream = Make({}, 2);
  PushAll(stream, {Byte('a'), kEos});
  EXPECT_EQ(stream.end()->reason, FinishReason::kStop);
}

TEST_F(OutputStreamTest, AStopStringAcrossTokensHoldsItsBeginningBack) {
  OutputStream stream = Make({"bcd"});
  EXPECT_THAT(PushAll(stream, {Pair('a', 'b'), Byte('c'), Pair('d', 'e'), Byte('f')}),
              ElementsAre("a", "", ""));
  ASSERT_TRUE(stream.end().has_value());
  EXPECT_EQ(stream.end()->reason, FinishReason::kStop);
  EXPECT_EQ(stream.end()->stop_string, "bcd");
  EXPECT_EQ(stream.token_count(), 3) << "the token that completes it is part of the answer";
}

TEST_F(OutputStreamTest, WhatOnlyBeganAStopStringIsGivenOut) {
  OutputStream stream = Make({"bcd"});
  EXPECT_THAT(PushAll(stream, {Pair('a', 'b'), Byte('c'), Byte('x')}), ElementsAre("a", "", "bcx"));
  EXPECT_FALSE(stream.end().has_value());
}

TEST_F(OutputStreamTest, NothingIsHeldBackAtTheEnd) {
  OutputStream eos = Make({"bcd"});
  EXPECT_THAT(PushAll(eos, {Pair('a', 'b'), kEos}), ElementsAre("a", "b"));
  OutputStream full = Make({"bcd"}, 2);
  EXPECT_THAT(PushAll(full, {Byte('a'), Byte('b')}), ElementsAre("a", "b"));
}

TEST_F(OutputStreamTest, AStopStringCompletedByTheLastTokenIsAStop) {
  OutputStream stream = Make({"ab"}, 2);
  EXPECT_THAT(PushAll(stream, {Byte('a'), Byte('b')}), ElementsAre("", ""));
  EXPECT_EQ(stream.end()->stop_string, "ab");
}

TEST_F(OutputStreamTest, HalfACharacterWaitsAndBecomesAReplacementAtTheEnd) {
  OutputStream stream = Make({}, 3);
  EXPECT_THAT(PushAll(stream, {Byte('\xc3'), Byte('\xa9'), Byte('\xc3')}),
              ElementsAre("", "\u00e9", "\ufffd"));
}

TEST_F(OutputStreamTest, TokensTheTokeniserDoesNotKnowHaveNoText) {
  OutputStream stream = Make({});
  EXPECT_THAT(PushAll(stream, {Byte('a'), 5000, Byte('b')}), ElementsAre("a", "", "b"));
}

TEST_F(OutputStreamTest, ACopyIsASnapshot) {
  OutputStream stream = Make({"abc"});
  stream.Push(Byte('a'));
  OutputStream ahead = stream;
  ahead.Push(Byte('b'));
  ahead.Push(Byte('c'));
  EXPECT_TRUE(ahead.end().has_value());
  EXPECT_FALSE(stream.end().has_value());
  EXPECT_EQ(stream.Push(Byte('x')), "ax");
}

TEST_F(OutputStreamTest, ResumedAfterAnyTokenTheTextGoesOnWhereItEnded) {
  // Characters of one to four bytes, an invalid byte, and beginnings of stop strings across them.
  const std::string bytes =
      "ab\u00e9\u20ac\U0001f600b\u20acy\xff"
      "x\u00e9\u20acz";
  std::vector<int32_t> tokens;
  for (const char c : bytes) tokens.push_back(Byte(c));
  tokens.push_back(Pair('q', 'r'));
  const std::vector<std::vector<std::string>> stop_lists = {
      {}, {"b\u20acx"}, {"\u20acz"}, {"rs", "\u00e9\u20acy"}};
  for (const auto& stops : stop_lists) {
    OutputStream whole = Make(stops, static_cast<int32_t>(tokens.size()));
    const std::vector<std::string> texts = PushAll(whole, tokens);
    for (size_t cut = 0; cut < texts.size(); ++cut) {
      OutputStream resumed = Make(stops, static_cast<int32_t>(tokens.size()));
      const auto from = static_cast<int64_t>(cut);
      ASSERT_TRUE(resumed.Resume({tokens.data(), cut}).ok());
      EXPECT_THAT(PushAll(resumed, {tokens.begin() + from, tokens.end()}),
                  ElementsAreArray(texts.begin() + from, texts.end()));
      EXPECT_EQ(resumed.token_count(), whole.token_count());
      EXPECT_EQ(resumed.end()->stop_string, whole.end()->stop_string);
    }
    EXPECT_FALSE(Make(stops, static_cast<int32_t>(tokens.size())).Resume(tokens).ok());
  }
}

TEST_F(OutputStreamTest, AnEmptyStopStringIsRefused) {
  const std::vector<std::string> stop_strings = {""};
  EXPECT_FALSE(OutputStream::Create(*tokenizer_, stop_strings, {}, 1).ok());
}

}  // namespace
}  // namespace selfsame::decoder
