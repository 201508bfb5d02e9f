#include "common/tokenizer/added_tokens.h"

#include <algorithm>

#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace selfsame {
namespace {

bool StartsWithWord(std::string_view text) {
  size_t offset = 0;
  return !text.empty() && IsWordCharacter(NextCodePoint(text, &offset));
}

bool EndsWithWord(std::string_view text) {
  if (text.empty()) return false;
  size_t offset = PreviousCodePointStart(text, text.size());
  return IsWordCharacter(NextCodePoint(text, &offset));
}

// Where the white space at the end of `text` starts, not before `limit`.
size_t TrailingSpaceStart(std::string_view text, size_t limit) {
  size_t start = text.size();
  while (start > limit) {
    const size_t previous = PreviousCodePointStart(text, start);
    size_t offset = previous;
    if (!IsSpace(NextCodePoint(text, &offset))) break;
    start = previous;
  }
  return start;
}

size_t LeadingSpaceEnd(std::string_view text) {
  size_t end = 0;
  for (size_t offset = 0; offset < text.size(); end = offset) {
    if (!IsSpace(NextCodePoint(text, &offset))) break;
  }
  return end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), nodes_(1) {
  for (size_t index = 0; index < tokens_.size(); ++index) {
    const std::string& content = tokens_[index].content;
    if (content.empty()) continue;
    is_first_byte_[static_cast<uint8_t>(content[0])] = true;
    int32_t node = 0;
    for (const char c : content) {
      const uint8_t byte = static_cast<uint8_t>(c);
      int32_t child = Child(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_[node].children.emplace_back(byte, child);
        nodes_.emplace_back();
      }
      node = child;
    }
    nodes_[node].token_index = static_cast<int32_t>(index);
  }
}

int32_t AddedTokenMatcher::Child(int32_t node, uint8_t byte) const {
  for (const auto& [edge, child] : nodes_[node].children) {
    if (edge == byte) return child;
  }
  return -1;
}

int32_t AddedTokenMatcher::LongestAt(std::string_view text) const {
  int32_t best = -1;
  int32_t node = 0;
  for (const char c : text) {
    node = Child(node, static_cast<uint8_t>(c));
    if (node < 0) break;
    if (nodes_[node].token_index >= 0) best = nodes_[node].token_index;
  }
  return best;
}

std::vector<AddedTokenMatcher::Segment> AddedTokenMatcher::Split(std::string_view text) const {
  std::vector<Segment> segments;
  size_t covered = 0;  // everything before it is in `segments`
  for (size_t position = 0; position < text.size();) {
    int32_t index = -1;
    if (is_first_byte_[static_cast<uint8_t>(text[position])]) {
      index = LongestAt(text.substr(position));
    }
    if (index < 0) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t start = position;
    size_t end = position + token.content.size();
    // A token found in the wrong surroundings still uses up its text: no shorter one is tried
    // there.
    position = end;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, start)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) start = TrailingSpaceStart(text.substr(0, start), std::min(covered, start));
    if (token.rstrip) end += LeadingSpaceEnd(text.substr(end));
    if (covered < start) segments.push_back({text.substr(covered, start - covered)});
    segments.push_back({{}, token.id});
    covered = end;
  }
  if (covered < text.size()) segments.push_back({text.substr(covered)});
  return segments;
}

}  // namespace selfsame
