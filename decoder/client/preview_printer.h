#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace selfsame::client {

struct TerminalSize {
  int32_t rows = 24;
  int32_t columns = 80;
};

// Writes a text on a terminal together with what may follow it: candidates stand behind the text,
// dim, and are erased with control sequences (ECMA-48) when they change. What the terminal shows in
// the end is the text as if it had been printed plainly. One thread.
//
// It keeps count of the cursor's column, so that the text must begin in the first one, nothing else
// may be printed meanwhile, and a terminal resized meanwhile may show remains of candidates.
// Control characters are shown as U+FFFD and tabs as spaces: they would move the cursor. No more
// candidates are shown than fit on the screen.
class PreviewPrinter {
 public:
  explicit PreviewPrinter(TerminalSize size);

  // The bytes to write so that the screen shows the text, now longer by `text`, and then all of
  // `candidates`. REQUIRES: valid UTF-8.
  std::string Update(std::string_view text, std::string_view candidates);

 private:
  // What one character looks like.
  struct Glyph {
    std::string text;
    int32_t width = 0;  // columns
  };
  // Where the cursor is.
  struct Place {
    int32_t row = 0;     // from where the text began
    int32_t column = 0;  // columns_: behind the last one, where the next character wraps
    // Before the cursor. Where it fills the last column it is printed again to come back here: no
    // control sequence takes the cursor behind it.
    Glyph last = {};
  };

  // `character` is not a newline; `column` is that of the cursor, which a tab needs.
  Glyph GlyphOf(std::string_view character, int32_t column) const;
  // Appends what `text` looks like to `out` and moves `place`. Stops before a character that would
  // come to stand in `end_row`; returns how many bytes it took.
  size_t Print(std::string_view text, int32_t end_row, Place& place, std::string& out) const;
  // Goes from the end of the candidates to that of the text, and clears what is behind it.
  void Erase(std::string& out) const;

  const int32_t rows_;
  const int32_t columns_;
  Place text_end_;
  Place shown_end_;    // of the candidates
  std::string shown_;  // candidates on the screen
};

}  // namespace selfsame::client
