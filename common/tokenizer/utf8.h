#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace selfsame {

// The offset of the first byte that is not part of a well-formed UTF-8 sequence (no surrogates, no
// overlong forms, at most U+10FFFF), or std::string_view::npos when `text` is valid.
size_t FirstInvalidUtf8(std::string_view text);

// The code point that starts at `*offset`; moves `*offset` past it. REQUIRES: `text` is valid UTF-8
// and `*offset` is inside it, at the start of a character.
char32_t NextCodePoint(std::string_view text, size_t* offset);

// The start of the character that ends right before `offset`. REQUIRES: valid UTF-8, offset > 0.
size_t PreviousCodePointStart(std::string_view text, size_t offset);

void AppendUtf8(char32_t code_point, std::string* out);

// Turns a stream of bytes into UTF-8, a whole character at a time. Each maximal ill-formed subpart
// becomes one U+FFFD, so that the result does not depend on how the bytes are cut into pushes.
// A small value: a copy is a snapshot. Not thread safe.
class Utf8Assembler {
 public:
  // Appends to `out` every character that `bytes` completes.
  void Push(std::string_view bytes, std::string* out);

  // Appends U+FFFD when the stream ends inside a character. The assembler is empty afterwards.
  void Finish(std::string* out);

  // True when no character is in progress.
  bool empty() const { return size_ == 0; }

 private:
  friend size_t FirstInvalidUtf8(std::string_view text);

  enum class Step { kMore, kComplete, kInvalid, kInvalidRetry };
  // Takes one byte. kInvalidRetry: what was pending is ill-formed and the byte itself has not been
  // looked at yet.
  Step Take(uint8_t byte);

  char pending_[4] = {};
  uint8_t size_ = 0;       // bytes in pending_
  uint8_t remaining_ = 0;  // bytes still missing
  uint8_t low_ = 0x80;     // the next byte must lie in [low_, high_]
  uint8_t high_ = 0xBF;
};

}  // namespace selfsame
