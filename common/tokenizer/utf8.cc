#include "common/tokenizer/utf8.h"

namespace selfsame {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

Utf8Assembler::Step Utf8Assembler::Take(uint8_t byte) {
  if (size_ == 0) {
    low_ = 0x80;
    high_ = 0xBF;
    if (byte < 0x80) {
      remaining_ = 0;
    } else if (byte >= 0xC2 && byte <= 0xDF) {
      remaining_ = 1;
    } else if (byte >= 0xE0 && byte <= 0xEF) {
      remaining_ = 2;
      if (byte == 0xE0) low_ = 0xA0;   // overlong below
      if (byte == 0xED) high_ = 0x9F;  // surrogates above
    } else if (byte >= 0xF0 && byte <= 0xF4) {
      remaining_ = 3;
      if (byte == 0xF0) low_ = 0x90;
      if (byte == 0xF4) high_ = 0x8F;
    } else {
      return Step::kInvalid;
    }
    pending_[size_++] = static_cast<char>(byte);
    return remaining_ == 0 ? Step::kComplete : Step::kMore;
  }
  if (byte < low_ || byte > high_) return Step::kInvalidRetry;
  low_ = 0x80;
  high_ = 0xBF;
  pending_[size_++] = static_cast<char>(byte);
  return --remaining_ == 0 ? Step::kComplete : Step::kMore;
}

void Utf8Assembler::Push(std::string_view bytes, std::string* out) {
  for (size_t i = 0; i < bytes.size();) {
    switch (Take(static_cast<uint8_t>(bytes[i]))) {
      case Step::kMore:
        ++i;
        break;
      case Step::kComplete:
        out->append(pending_, size_);
        size_ = 0;
        ++i;
        break;
      case Step::kInvalid:
        out->append(kReplacement);
        ++i;
        break;
      case Step::kInvalidRetry:
        out->append(kReplacement);
        size_ = 0;
        break;
    }
  }
}

void Utf8Assembler::Finish(std::string* out) {
  if (size_ > 0) out->append(kReplacement);
  size_ = 0;
}

size_t FirstInvalidUtf8(std::string_view text) {
  Utf8Assembler assembler;
  size_t start = 0;  // of the character in progress
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    if (assembler.size_ == 0) {
      if (byte < 0x80) continue;
      start = i;
    }
    switch (assembler.Take(byte)) {
      case Utf8Assembler::Step::kMore:
        break;
      case Utf8Assembler::Step::kComplete:
        assembler.size_ = 0;
        break;
      default:
        return start;
    }
  }
  return assembler.size_ == 0 ? std::string_view::npos : start;
}

char32_t NextCodePoint(std::string_view text, size_t* offset) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[*offset + i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    *offset += 1;
    return lead;
  }
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code_point = lead & (0xFF >> (length + 1));
  for (int i = 1; i < length; ++i) code_point = code_point << 6 | (byte(i) & 0x3F);
  *offset += length;
  return code_point;
}

size_t PreviousCodePointStart(std::string_view text, size_t offset) {
  do {
    --offset;
  } while (offset > 0 && (static_cast<uint8_t>(text[offset]) & 0xC0) == 0x80);
  return offset;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
    return;
  }
  const int length = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
  const int lead_mark = 0xFF00 >> length & 0xFF;
  out->push_back(static_cast<char>(lead_mark | code_point >> 6 * (length - 1)));
  for (int i = length - 2; i >= 0; --i) {
    out->push_back(static_cast<char>(0x80 | (code_point >> 6 * i & 0x3F)));
  }
}

}  // namespace selfsame
