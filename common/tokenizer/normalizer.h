#pragma once

#include <string>
#include <string_view>

namespace selfsame {

// NFC of `text`, with the composition and ordering tables of the reference tokeniser library: they
// are Unicode 9.0's, so a character of a later version stays where and as it is.
// REQUIRES: `text` is valid UTF-8.
std::string NormalizeNfc(std::string_view text);

}  // namespace selfsame
