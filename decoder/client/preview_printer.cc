#include "decoder/client/preview_printer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/tokenizer/utf8.h"

namespace selfsame::client {
namespace {

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";
constexpr std::string_view kClearToEnd = "\x1b[J";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr int32_t kTabWidth = 8;
constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();

bool IsControl(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_CONTROL_CHAR; }

// Columns of a character, as terminals have it.
int32_t Width(char32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  switch (u_charType(c)) {
    case U_NON_SPACING_MARK:
    case U_ENCLOSING_MARK:
    case U_FORMAT_CHAR:
      return 0;
    default:
      break;
  }
  const int32_t east_asian = u_getIntPropertyValue(c, UCHAR_EAST_ASIAN_WIDTH);
  return east_asian == U_EA_FULLWIDTH || east_asian == U_EA_WIDE ? 2 : 1;
}

}  // namespace

PreviewPrinter::PreviewPrinter(TerminalSize size)
    : rows_(std::max(size.rows, 2)), columns_(std::max(size.columns, 2)) {}

PreviewPrinter::Glyph PreviewPrinter::GlyphOf(std::string_view character, int32_t column) const {
  size_t offset = 0;
  const char32_t code_point = NextCodePoint(character, &offset);
  if (code_point == '\t') {
    if (column == columns_) column = 0;
    const int32_t width = std::min(kTabWidth - column % kTabWidth, columns_ - column);
    return {std::string(static_cast<size_t>(width), ' '), width};
  }
  if (IsControl(code_point)) return {std::string(kReplacement), 1};
  return {std::string(character), Width(code_point)};
}

size_t PreviewPrinter::Print(std::string_view text, int32_t end_row, Place& place,
                             std::string& out) const {
  size_t offset = 0;
  while (offset < text.size()) {
    size_t next = offset;
    const bool is_newline = NextCodePoint(text, &next) == '\n';
    Place moved = place;
    std::string shown = "\n";
    if (is_newline) {
      moved = {.row = place.row + 1};
    } else {
      Glyph glyph = GlyphOf(text.substr(offset, next - offset), place.column);
      shown = glyph.text;
      if (place.column + glyph.width > columns_) moved = {.row = place.row + 1};
      moved.column += glyph.width;
      if (glyph.width == 0) {
        moved.last.text += glyph.text;
      } else {
        moved.last = std::move(glyph);
      }
    }
    if (moved.row >= end_row) break;
    place = std::move(moved);
    out += shown;
    offset = next;
  }
  return offset;
}

void PreviewPrinter::Erase(std::string& out) const {
  if (shown_end_.row > text_end_.row) {
    absl::StrAppend(&out, "\x1b[", shown_end_.row - text_end_.row, "A");
  }
  out += '\r';
  const bool is_behind_last = text_end_.column == columns_;
  const int32_t column = is_behind_last ? columns_ - text_end_.last.width : text_end_.column;
  if (column > 0) absl::StrAppend(&out, "\x1b[", column, "C");
  out += kClearToEnd;
  if (is_behind_last) out += text_end_.last.text;
}

std::string PreviewPrinter::Update(std::string_view text, std::string_view candidates) {
  std::string out;
  if (!text.empty() || !candidates.starts_with(shown_)) {
    if (!shown_.empty()) Erase(out);
    shown_.clear();
    Print(text, kNoLimit, text_end_, out);
    shown_end_ = text_end_;
  }
  candidates.remove_prefix(shown_.size());
  std::string dim;
  const size_t size_bytes = Print(candidates, text_end_.row + rows_ - 1, shown_end_, dim);
  if (size_bytes == 0) return out;
  shown_ += candidates.substr(0, size_bytes);
  out += kDim;
  out += dim;
  out += kPlain;
  return out;
}

}  // namespace selfsame::client
