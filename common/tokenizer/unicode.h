#pragma once

#include <string>

// Character classes, the same ones as the reference tokeniser library (tokenizers 0.23) uses,
// whatever Unicode version PCRE2 and ICU were built with.
namespace selfsame {

// White_Space.
bool IsSpace(char32_t code_point);

// General category N, as of Unicode 17.
bool IsNumber(char32_t code_point);

// A word character: alphabetic, mark, decimal digit, connector punctuation or join control; letters
// as of Unicode 16.
bool IsWordCharacter(char32_t code_point);

// Items of a PCRE2 character class, without the brackets: White_Space, and the general categories L
// and N as of Unicode 16.
std::string SpaceClassItems();
std::string LetterClassItems();
std::string NumberClassItems();

}  // namespace selfsame
