#include "decoder/client/preview_printer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/tokenizer/utf8.h"

namespace selfsame::client {
namespace {

// What an xterm makes of the bytes: a screen that scrolls, with a last column after which the
// cursor stays until the next character wraps. Characters from U+4E00 on are two columns wide.
class Terminal {
 public:
  explicit Terminal(TerminalSize size) : size_(size) {}

  void Write(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size();) {
      if (bytes[i] == '\x1b') {
        i = Control(bytes, i + 2);
        continue;
      }
      const size_t start = i;
      const char32_t c = NextCodePoint(bytes, &i);
      Put(c, std::string(bytes.substr(start, i - start)));
    }
  }

  // Lines from the first to the last that has something, scrolled ones too.
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (const auto& row : rows_) {
      std::string line;
      for (const std::string& cell : row) line += cell;
      lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
    }
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    return lines;
  }
  bool is_dim() const { return is_dim_; }

 private:
  size_t Control(std::string_view bytes, size_t i) {
    int32_t number = 0;
    for (; bytes[i] >= '0' && bytes[i] <= '9'; ++i) number = number * 10 + (bytes[i] - '0');
    switch (bytes[i]) {
      case 'A':
        row_ = std::max(row_ - number, top_);
        break;
      case 'C':
        column_ = std::min(column_ + number, size_.columns - 1);
        break;
      case 'J':
        for (int32_t c = column_; c < size_.columns; ++c)
          Row(row_)[static_cast<size_t>(c)].assign(1, ' ');
        rows_.resize(static_cast<size_t>(row_) + 1);
        break;
      case 'm':
        is_dim_ = number == 2;
        break;
      default:
        ADD_FAILURE() << "unknown sequence " << bytes[i];
    }
    if (bytes[i] != 'm') is_pending_ = false;
    return i + 1;
  }

  void Put(char32_t c, const std::string& character) {
    if (c == '\r') {
      column_ = 0;
      is_pending_ = false;
    } else if (c == '\n') {
      NextRow();
    } else {
      const int32_t width = c >= 0x4e00 ? 2 : 1;
      if (is_pending_ || column_ + width > size_.columns) NextRow();
      std::vector<std::string>& row = Row(row_);
      row[static_cast<size_t>(column_)] = character;
      if (width == 2) row[static_cast<size_t>(column_) + 1].clear();
      column_ += width;
      is_pending_ = column_ == size_.columns;
      if (is_pending_) --column_;
    }
  }

  void NextRow() {
    ++row_;
    column_ = 0;
    is_pending_ = false;
    top_ = std::max(top_, row_ - size_.rows + 1);
    Row(row_);
  }

  std::vector<std::string>& Row(int32_t row) {
    const auto count = static_cast<size_t>(row) + 1;
    while (rows_.size() < count)
      rows_.emplace_back(static_cast<size_t>(size_.columns), std::string(1, ' '));
    return rows_[static_cast<size_t>(row)];
  }

  const TerminalSize size_;
  std::vector<std::vector<std::string>> rows_;
  int32_t row_ = 0;
  int32_t column_ = 0;
  int32_t top_ = 0;  // first row of the screen
  bool is_pending_ = false;
  bool is_dim_ = false;
};

std::vector<std::string> Plain(TerminalSize size, const std::string& text) {
  Terminal terminal(size);
  terminal.Write(text);
  return terminal.Lines();
}

TEST(PreviewPrinterTest, CandidatesAreDimAndErasedWhenTheyChange) {
  PreviewPrinter printer({.rows = 10, .columns = 20});
  EXPECT_EQ(printer.Update("", "ab"), "\x1b[2mab\x1b[0m");
  EXPECT_EQ(printer.Update("", "abc"), "\x1b[2mc\x1b[0m");
  EXPECT_EQ(printer.Update("", "abc"), "");
  EXPECT_EQ(printer.Update("a", "bc"), "\r\x1b[Ja\x1b[2mbc\x1b[0m");
  EXPECT_EQ(printer.Update("", "x"), "\r\x1b[1C\x1b[J\x1b[2mx\x1b[0m");
  EXPECT_EQ(printer.Update("yz", ""), "\r\x1b[1C\x1b[Jyz");
}

TEST(PreviewPrinterTest, WithoutCandidatesTheTextIsAsItIs) {
  PreviewPrinter printer({.rows = 10, .columns = 20});
  EXPECT_EQ(printer.Update("one line\nand ", ""), "one line\nand ");
  EXPECT_EQ(printer.Update("another", ""), "another");
}

TEST(PreviewPrinterTest, CharactersThatWouldMoveTheCursorAreReplaced) {
  PreviewPrinter printer({.rows = 10, .columns = 20});
  EXPECT_EQ(printer.Update("a\x1b[2J\tb\r", ""), "a\ufffd[2J   b\ufffd");
}

class ScreenTest : public ::testing::TestWithParam<TerminalSize> {};

// Random texts and candidates: narrow and wide characters, newlines, lines that end in the last
// column, candidates longer than the screen.
TEST_P(ScreenTest, TheScreenEndsAsIfTheTextHadBeenPrintedPlainly) {
  const std::vector<std::string> characters = {"a", "b", " ", "\n", "\u4e16", "\u00e9"};
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    uint32_t state = seed;
    const auto below = [&state](uint32_t bound) {
      state = state * 1664525u + 1013904223u;
      return (state >> 8) % bound;
    };
    const auto draw = [&](uint32_t length) {
      std::string text;
      for (uint32_t i = 0; i < length; ++i) {
        text += characters[below(static_cast<uint32_t>(characters.size()))];
      }
      return text;
    };
    PreviewPrinter printer(GetParam());
    Terminal terminal(GetParam());
    std::string text;
    std::string candidates;
    for (int step = 0; step < 40; ++step) {
      std::string added;
      if (below(3) == 0) {
        candidates = draw(below(40));
      } else if (below(2) == 0) {
        candidates += draw(below(6));
      } else {
        added = draw(below(25));
        if (below(2) == 0) candidates.clear();
      }
      text += added;
      terminal.Write(printer.Update(added, candidates));
      EXPECT_FALSE(terminal.is_dim());
      const auto shown = terminal.Lines();
      const auto whole = Plain(GetParam(), text + candidates);
      // All of it, or what fits on the screen.
      ASSERT_LE(shown.size(), whole.size());
      if (!shown.empty()) {
        ASSERT_TRUE(std::equal(shown.begin(), shown.end() - 1, whole.begin()));
        ASSERT_TRUE(whole[shown.size() - 1].starts_with(shown.back()));
      }
    }
    terminal.Write(printer.Update("", ""));
    ASSERT_EQ(terminal.Lines(), Plain(GetParam(), text));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ScreenTest,
                         ::testing::Values(TerminalSize{3, 4}, TerminalSize{5, 7},
                                           TerminalSize{24, 80}, TerminalSize{2, 11}));

}  // namespace
}  // namespace selfsame::client
