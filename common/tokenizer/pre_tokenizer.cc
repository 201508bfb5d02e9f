#include "common/tokenizer/pre_tokenizer.h"

#include <string>

#include "common/errors.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace selfsame {
namespace {

using Sink = absl::FunctionRef<absl::Status(std::string_view)>;

absl::Status SplitDigits(std::string_view text, bool is_individual, Sink sink) {
  size_t start = 0;  // of the piece in progress
  bool in_digits = false;
  for (size_t offset = 0; offset < text.size();) {
    const size_t here = offset;
    const bool is_digit = IsNumber(NextCodePoint(text, &offset));
    const bool is_cut = is_digit != in_digits || (is_digit && is_individual);
    if (is_cut && here > start) {
      RETURN_IF_ERROR(sink(text.substr(start, here - start)));
      start = here;
    }
    in_digits = is_digit;
  }
  return start < text.size() ? sink(text.substr(start)) : absl::OkStatus();
}

}  // namespace

absl::Status PreTokenizer::Run(std::string_view text, Sink sink) const {
  return RunFrom(0, text, sink);
}

absl::Status PreTokenizer::RunFrom(size_t step, std::string_view text, Sink sink) const {
  if (step == steps_.size()) return text.empty() ? absl::OkStatus() : sink(text);
  const auto next = [&](std::string_view piece) { return RunFrom(step + 1, piece, sink); };
  switch (steps_[step].kind) {
    case Kind::kSplit:
      return steps_[step].regex->Split(text, next);
    case Kind::kEachDigit:
    case Kind::kDigitRuns:
      return SplitDigits(text, steps_[step].kind == Kind::kEachDigit, next);
    case Kind::kPrefixSpace:
      break;
  }
  if (text.starts_with(' ')) return next(text);
  return next(std::string(" ").append(text));
}

std::string_view Gpt2Pattern() {
  return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
}

}  // namespace selfsame
