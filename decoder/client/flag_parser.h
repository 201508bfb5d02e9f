#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace selfsame::client {

// The flags of one command, each bound to a variable that holds its default. Accepts --name=value,
// --name value, and for booleans --name and --noname. The variables must outlive the parser.
class FlagParser {
 public:
  // `usage` is the first line of the help text, `summary` the paragraph under it.
  FlagParser(std::string_view usage, std::string_view summary) : usage_(usage), summary_(summary) {}

  void Add(std::string_view name, std::string* value, std::string_view help);
  void Add(std::string_view name, bool* value, std::string_view help);
  void Add(std::string_view name, int32_t* value, std::string_view help);
  void Add(std::string_view name, uint64_t* value, std::string_view help);
  void Add(std::string_view name, double* value, std::string_view help);
  void Add(std::string_view name, std::optional<std::string>* value, std::string_view help);
  void Add(std::string_view name, std::optional<int32_t>* value, std::string_view help);
  void Add(std::string_view name, std::optional<uint64_t>* value, std::string_view help);
  void Add(std::string_view name, std::optional<float>* value, std::string_view help);
  // May be given several times.
  void Add(std::string_view name, std::vector<std::string>* value, std::string_view help);
  // KEY:NUMBER; may be given several times, with keys of their own.
  void Add(std::string_view name, std::map<int32_t, float>* value, std::string_view help);

  // INVALID_ARGUMENT names the flag that is unknown, has no value or a malformed one.
  absl::Status Parse(std::span<const std::string> arguments);

  // --help was given; the caller prints Help() and stops.
  bool help_requested() const { return help_requested_; }
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string default_value;
    bool is_bool = false;
    // False when the text is not a value of the flag's type.
    std::function<bool(std::string_view)> set;
    std::string_view type;
  };

  const Flag* Find(std::string_view name) const;

  std::string usage_;
  std::string summary_;
  std::vector<Flag> flags_;
  bool help_requested_ = false;
};

}  // namespace selfsame::client
