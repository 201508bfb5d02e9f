#include "common/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace selfsame {
namespace {

// Backtracking steps of one match. The known pre-tokeniser patterns need a few per byte of the
// longest run of spaces; a pattern that needs more on a text of the largest size is at fault.
constexpr uint32_t kMatchLimit = 1u << 30;
constexpr uint32_t kHeapLimitKib = 1u << 20;

absl::Status PatternError(std::string_view message) {
  return InvalidArgumentError("pattern", message);
}

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[160] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct MatchContext {
  MatchContext() : context(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
  }
  ~MatchContext() { pcre2_match_context_free(context); }
  MatchContext(const MatchContext&) = delete;
  MatchContext& operator=(const MatchContext&) = delete;

  pcre2_match_context* context;
};

// One pattern, read escape by escape.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      if (c == '\\') {
        RETURN_IF_ERROR(Escape());
        continue;
      }
      if (in_class_ && (c == '[' || pattern_.substr(position_, 2) == "&&")) {
        return PatternError("a set inside a character class is not supported");
      }
      if (c == '[') {
        in_class_ = true;
        // A bracket right after the opening one is a literal in some engines only.
        if (pattern_.substr(position_ + 1, 1) == "]" || pattern_.substr(position_ + 1, 2) == "^]") {
          return PatternError("an unescaped ] cannot open a character class");
        }
      } else if (c == ']') {
        in_class_ = false;
      }
      result_ += c;
      ++position_;
    }
    return std::move(result_);
  }

 private:
  absl::Status Escape() {
    const std::string_view rest = pattern_.substr(position_);
    if (rest.size() < 2) return PatternError("ends in a backslash");
    const char kind = rest[1];
    if (kind == 's' || kind == 'S') return Class(2, SpaceClassItems(), kind == 'S');
    if (kind == 'p' || kind == 'P') {
      const std::string_view property = rest.substr(2, 3);
      if (property == "{L}") return Class(5, LetterClassItems(), kind == 'P');
      if (property == "{N}") return Class(5, NumberClassItems(), kind == 'P');
    }
    const bool is_letter_or_digit = (kind >= '0' && kind <= '9') || (kind >= 'A' && kind <= 'Z') ||
                                    (kind >= 'a' && kind <= 'z');
    if (is_letter_or_digit && std::string_view("rntpPdDx").find(kind) == std::string_view::npos) {
      return PatternError(absl::StrCat("the escape \\", std::string(1, kind), " is not supported"));
    }
    result_.append(rest.substr(0, 2));
    position_ += 2;
    return absl::OkStatus();
  }

  absl::Status Class(size_t length, std::string_view items, bool is_negated) {
    if (in_class_ && is_negated) {
      return PatternError("a negated class inside a character class is not supported");
    }
    if (!in_class_) result_ += is_negated ? "[^" : "[";
    result_ += items;
    if (!in_class_) result_ += ']';
    position_ += length;
    return absl::OkStatus();
  }

  std::string_view pattern_;
  size_t position_ = 0;
  bool in_class_ = false;
  std::string result_;
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(std::string_view pattern) {
  return Translator(pattern).Run();
}

void Regex::CodeDeleter::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &error_offset, nullptr);
  if (code == nullptr) {
    return PatternError(absl::StrCat(ErrorText(error), " in ", std::string(pattern)));
  }
  // Only speed depends on the compiled code: without it the interpreter gives the same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(code);
}

absl::Status Regex::Split(std::string_view text,
                          absl::FunctionRef<absl::Status(std::string_view)> sink) const {
  const MatchContext match_context;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match_data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match_data.get());
  const auto match = [&](size_t offset, uint32_t options) {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), offset,
                       PCRE2_NO_UTF_CHECK | options, match_data.get(), match_context.context);
  };
  size_t covered = 0;  // everything before it has gone to `sink`
  size_t offset = 0;
  while (offset < text.size()) {
    int result = match(offset, 0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(offset, PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return InternalError(absl::StrCat("pre-tokeniser pattern: ", ErrorText(result)));
    }
    const size_t start = bounds[0];
    const size_t end = bounds[1];
    if (start > covered) RETURN_IF_ERROR(sink(text.substr(covered, start - covered)));
    if (end > start) RETURN_IF_ERROR(sink(text.substr(start, end - start)));
    covered = std::max(covered, end);
    offset = end;
    // An empty match would be found again at the same place for ever.
    if (end == start && offset < text.size()) NextCodePoint(text, &offset);
  }
  if (covered < text.size()) RETURN_IF_ERROR(sink(text.substr(covered)));
  return absl::OkStatus();
}

}  // namespace selfsame
