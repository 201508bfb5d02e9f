#include "common/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "common/tokenizer/byte_level.h"

namespace selfsame {
namespace {

constexpr std::string_view kBad = "\xEF\xBF\xBD";

std::string Lossy(std::string_view bytes) {
  std::string text;
  Utf8Assembler assembler;
  assembler.Push(bytes, &text);
  assembler.Finish(&text);
  return text;
}

std::string Bad(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kBad;
  return text;
}

TEST(Utf8Test, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FirstInvalidUtf8(""), std::string_view::npos);
  EXPECT_EQ(FirstInvalidUtf8("aé€😀\x7F"), std::string_view::npos);
  EXPECT_EQ(FirstInvalidUtf8("\xF4\x8F\xBF\xBF"), std::string_view::npos);
  EXPECT_EQ(FirstInvalidUtf8("ab\x80"), 2u);
  EXPECT_EQ(FirstInvalidUtf8("é\xC0\x80"), 2u) << "overlong";
  EXPECT_EQ(FirstInvalidUtf8("\xE0\x9F\xBF"), 0u) << "overlong";
  EXPECT_EQ(FirstInvalidUtf8("a\xED\xA0\x80"), 1u) << "surrogate";
  EXPECT_EQ(FirstInvalidUtf8("\xF4\x90\x80\x80"), 0u) << "beyond U+10FFFF";
  EXPECT_EQ(FirstInvalidUtf8("abc\xF0\x9F\x98"), 3u) << "cut off";
  EXPECT_EQ(FirstInvalidUtf8("\xC3"
                             "a"),
            0u);
}

TEST(Utf8Test, EachMaximalIllFormedSubpartBecomesOneReplacement) {
  EXPECT_EQ(Lossy("\xF0\x9F\x98"
                  "a"),
            Bad(1) + "a");
  EXPECT_EQ(Lossy("\xE0\x80"), Bad(2));
  EXPECT_EQ(Lossy("\xED\xA0\x80"), Bad(3));
  EXPECT_EQ(Lossy("\xC0\xAF"), Bad(2));
  EXPECT_EQ(Lossy("\xF4\x90\x80\x80"), Bad(4));
  EXPECT_EQ(Lossy("\xE2\x82\xE2\x82\xAC"), Bad(1) + "€");
  EXPECT_EQ(Lossy("\xC3\xC3\xA9"), Bad(1) + "é");
  EXPECT_EQ(Lossy("\xF0\x9F"), Bad(1));
}

TEST(Utf8Test, AssemblyDoesNotDependOnTheCuts) {
  std::mt19937 random(7);
  const std::string_view pieces[] = {
      "a", "é", "€", "😀", "\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xFF", "\xED\xA0\x80"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += pieces[random() % std::size(pieces)];
    Utf8Assembler assembler;
    std::string text;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = 1 + random() % 3;
      std::string out;
      assembler.Push(std::string_view(bytes).substr(at, size), &out);
      EXPECT_EQ(FirstInvalidUtf8(out), std::string_view::npos);
      text += out;
      at += size;
    }
    assembler.Finish(&text);
    EXPECT_EQ(text, Lossy(bytes));
    EXPECT_TRUE(assembler.empty());
  }
}

TEST(Utf8Test, CodePointsRoundTrip) {
  for (const char32_t code_point : {U'\0', U'\x7F', U'\x80', U'\x7FF', U'\x800', U'\xD7FF',
                                    U'\xE000', U'\xFFFF', U'\x10000', U'\x10FFFF'}) {
    std::string text = "x";
    AppendUtf8(code_point, &text);
    EXPECT_EQ(FirstInvalidUtf8(text), std::string_view::npos);
    size_t offset = 1;
    EXPECT_EQ(NextCodePoint(text, &offset), code_point);
    EXPECT_EQ(offset, text.size());
    EXPECT_EQ(PreviousCodePointStart(text, text.size()), 1u);
  }
}

TEST(ByteLevelTest, EveryByteHasItsOwnPrintableCharacter) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = ByteLevelCharacter(static_cast<uint8_t>(byte));
    EXPECT_EQ(ByteOfCharacter(character), byte);
    all.push_back(static_cast<char>(byte));
  }
  EXPECT_EQ(BytesOfSpelling(SpellBytes(all)), all);
  EXPECT_EQ(SpellBytes(" a\n\xC3"), "ĠaĊÃ");
}

TEST(ByteLevelTest, ASpellingOutsideTheAlphabetStandsForItself) {
  EXPECT_EQ(BytesOfSpelling("é x"), "é x");
  EXPECT_EQ(BytesOfSpelling("é"), "\xE9");
  EXPECT_EQ(BytesOfSpelling("<|im_end|>"), "<|im_end|>");
}

}  // namespace
}  // namespace selfsame
