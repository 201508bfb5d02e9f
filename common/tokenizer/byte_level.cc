#include "common/tokenizer/byte_level.h"

#include <array>

#include "common/tokenizer/utf8.h"

namespace selfsame {
namespace {

constexpr bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Printable Latin-1 bytes spell themselves; the others take U+0100, U+0101, ... in byte order.
constexpr std::array<char32_t, 256> MakeCharacters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[byte] = IsPrintable(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}

constexpr std::array<char32_t, 256> kCharacters = MakeCharacters();
constexpr int kCharacterLimit = 0x100 + 68;

constexpr std::array<int16_t, kCharacterLimit> MakeBytes() {
  std::array<int16_t, kCharacterLimit> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<int16_t, kCharacterLimit> kBytes = MakeBytes();

}  // namespace

char32_t ByteLevelCharacter(uint8_t byte) { return kCharacters[byte]; }

std::optional<uint8_t> ByteOfCharacter(char32_t character) {
  if (character >= kCharacterLimit || kBytes[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(kBytes[character]);
}

std::string SpellBytes(std::string_view bytes) {
  std::string spelling;
  spelling.reserve(bytes.size() * 2);
  for (const char byte : bytes) AppendUtf8(kCharacters[static_cast<uint8_t>(byte)], &spelling);
  return spelling;
}

std::string BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  for (size_t offset = 0; offset < spelling.size();) {
    const std::optional<uint8_t> byte = ByteOfCharacter(NextCodePoint(spelling, &offset));
    if (!byte.has_value()) return std::string(spelling);
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

}  // namespace selfsame
