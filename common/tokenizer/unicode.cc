#include "common/tokenizer/unicode.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <iterator>

namespace selfsame {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Numbers that Unicode 15 to 17 added and ICU 72 may not know.
constexpr Range kNewNumbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x11DE0, 0x11DE9},
    {0x11F50, 0x11F59}, {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x16FF4, 0x16FF6},
    {0x1CCF0, 0x1CCF9}, {0x1D2C0, 0x1D2D3}, {0x1E4F0, 0x1E4F9}, {0x1E5F1, 0x1E5FA},
};

}  // namespace

bool IsSpace(char32_t code_point) { return u_isUWhiteSpace(static_cast<UChar32>(code_point)); }

bool IsNumber(char32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  if ((U_GET_GC_MASK(static_cast<UChar32>(code_point)) & U_GC_N_MASK) != 0) return true;
  return std::any_of(std::begin(kNewNumbers), std::end(kNewNumbers), [&](const Range& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

bool IsWordCharacter(char32_t code_point) {
  const UChar32 c = static_cast<UChar32>(code_point);
  constexpr uint32_t kCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || (U_GET_GC_MASK(c) & kCategories) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

// Spelled out because PCRE2's \s also takes U+180E, which is no white space since Unicode 6.3.
std::string_view SpaceClassItems() {
  return R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F})"
         R"(\x{205F}\x{3000})";
}

// The ranges are what Unicode 15, 15.1 and 16 added to PCRE2 10.42's tables (Unicode 14).
std::string_view LetterClassItems() {
  return R"(\p{L}\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3})"
         R"(\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
         R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"
         R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"
         R"(\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF})"
         R"(\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB})"
         R"(\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
}

std::string_view NumberClassItems() {
  return R"(\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59})"
         R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3})"
         R"(\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";
}

}  // namespace selfsame
