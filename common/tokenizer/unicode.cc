#include "common/tokenizer/unicode.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <span>

#include "absl/strings/str_format.h"

namespace selfsame {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// What Unicode 15, 15.1 and 16 added to the tables of PCRE2 10.42 (Unicode 14) and ICU 72 (15).
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x1123F, 0x11240},
    {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5},
    {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0},
    {0x11F02, 0x11F02}, {0x11F04, 0x11F10}, {0x11F12, 0x11F33}, {0x1342F, 0x1342F},
    {0x13441, 0x13446}, {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C},
    {0x18CFF, 0x18CFF}, {0x1B132, 0x1B132}, {0x1B155, 0x1B155}, {0x1DF25, 0x1DF2A},
    {0x1E030, 0x1E06D}, {0x1E4D0, 0x1E4EB}, {0x1E5D0, 0x1E5ED}, {0x1E5F0, 0x1E5F0},
    {0x2B739, 0x2B739}, {0x2EBF0, 0x2EE5D}, {0x31350, 0x323AF}};
constexpr Range kNewNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                 {0x11F50, 0x11F59}, {0x16130, 0x16139}, {0x16D70, 0x16D79},
                                 {0x1CCF0, 0x1CCF9}, {0x1D2C0, 0x1D2D3}, {0x1E4F0, 0x1E4F9},
                                 {0x1E5F1, 0x1E5FA}};
// What Unicode 17 added.
constexpr Range kNewestNumbers[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

bool Contains(std::span<const Range> ranges, char32_t code_point) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

std::string ClassItems(std::string_view property, std::span<const Range> ranges) {
  std::string items(property);
  for (const Range& range : ranges) {
    absl::StrAppendFormat(&items, "\\x{%x}-\\x{%x}", static_cast<uint32_t>(range.first),
                          static_cast<uint32_t>(range.last));
  }
  return items;
}

}  // namespace

bool IsSpace(char32_t code_point) { return u_isUWhiteSpace(static_cast<UChar32>(code_point)); }

bool IsNumber(char32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  return (U_GET_GC_MASK(static_cast<UChar32>(code_point)) & U_GC_N_MASK) != 0 ||
         Contains(kNewNumbers, code_point) || Contains(kNewestNumbers, code_point);
}

bool IsWordCharacter(char32_t code_point) {
  const UChar32 c = static_cast<UChar32>(code_point);
  constexpr uint32_t kCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || (U_GET_GC_MASK(c) & kCategories) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) || Contains(kNewLetters, code_point);
}

// Spelled out because PCRE2's \s also takes U+180E, which is no white space since Unicode 6.3.
std::string SpaceClassItems() {
  return R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F})"
         R"(\x{205F}\x{3000})";
}

std::string LetterClassItems() { return ClassItems("\\p{L}", kNewLetters); }

std::string NumberClassItems() { return ClassItems("\\p{N}", kNewNumbers); }

}  // namespace selfsame
