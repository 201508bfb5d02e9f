#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct pcre2_real_code_8;

namespace selfsame {

// A regular expression of a tokeniser file. It is compiled with PCRE2 and means what it means to
// the reference tokeniser library: escapes whose meaning differs between engines are rewritten (\s,
// \p{L}, \p{N} and their negations) or rejected (\w, \b and others). Immutable, thread safe.
class Regex {
 public:
  // Returns InvalidArgumentError with the reason when the pattern cannot be compiled or uses a
  // construct outside the supported ones.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // Calls `sink` with every match and every stretch between matches, in order; together they are
  // `text`. Stops at the first error `sink` returns. REQUIRES: `text` is valid UTF-8.
  absl::Status Split(std::string_view text,
                     absl::FunctionRef<absl::Status(std::string_view)> sink) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };

  explicit Regex(pcre2_real_code_8* code) : code_(code) {}

  std::unique_ptr<pcre2_real_code_8, CodeDeleter> code_;
};

// The pattern that Compile hands to PCRE2; for tests.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

}  // namespace selfsame
