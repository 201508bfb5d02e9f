#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace selfsame {

// The byte-level alphabet: tokeniser files spell each of the 256 bytes as one printable character,
// so that any byte string can stand in a JSON vocabulary.

// The character that spells `byte`.
char32_t ByteLevelCharacter(uint8_t byte);

// The byte that `character` spells, or nothing when it is outside the alphabet.
std::optional<uint8_t> ByteOfCharacter(char32_t character);

// Spells a byte string in the alphabet.
std::string SpellBytes(std::string_view bytes);

// The bytes a vocabulary entry stands for. An entry with any character outside the alphabet (an
// added token with a space in it, say) stands for its own UTF-8 bytes.
std::string BytesOfSpelling(std::string_view spelling);

}  // namespace selfsame
