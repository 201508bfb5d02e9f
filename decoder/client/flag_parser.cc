#include "decoder/client/flag_parser.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/errors.h"

namespace selfsame::client {
namespace {

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

bool ParseValue(std::string_view text, std::string* value) {
  *value = text;
  return true;
}
bool ParseValue(std::string_view text, bool* value) {
  return absl::SimpleAtob(ToAbsl(text), value);
}
bool ParseValue(std::string_view text, int32_t* value) {
  return absl::SimpleAtoi(ToAbsl(text), value);
}
bool ParseValue(std::string_view text, uint64_t* value) {
  return absl::SimpleAtoi(ToAbsl(text), value);
}
bool ParseValue(std::string_view text, float* value) {
  return absl::SimpleAtof(ToAbsl(text), value) && std::isfinite(*value);
}
bool ParseValue(std::string_view text, double* value) {
  return absl::SimpleAtod(ToAbsl(text), value) && std::isfinite(*value);
}

template <typename T>
std::function<bool(std::string_view)> Setter(T* value) {
  return [value](std::string_view text) { return ParseValue(text, value); };
}
template <typename T>
std::function<bool(std::string_view)> Setter(std::optional<T>* value) {
  return [value](std::string_view text) { return ParseValue(text, &value->emplace()); };
}

}  // namespace

void FlagParser::Add(std::string_view name, std::string* value, std::string_view help) {
  flags_.push_back({std::string(name), std::string(help), *value, false, Setter(value), "text"});
}
void FlagParser::Add(std::string_view name, bool* value, std::string_view help) {
  flags_.push_back({std::string(name), std::string(help), *value ? "true" : "false", true,
                    Setter(value), "true or false"});
}
void FlagParser::Add(std::string_view name, int32_t* value, std::string_view help) {
  flags_.push_back({std::string(name), std::string(help), absl::StrCat(*value), false,
                    Setter(value), "an integer of 32 bits"});
}
void FlagParser::Add(std::string_view name, uint64_t* value, std::string_view help) {
  flags_.push_back({std::string(name), std::string(help), absl::StrCat(*value), false,
                    Setter(value), "a non-negative integer of 64 bits"});
}
void FlagParser::Add(std::string_view name, double* value, std::string_view help) {
  flags_.push_back({std::string(name), std::string(help), absl::StrCat(*value), false,
                    Setter(value), "a finite number"});
}
void FlagParser::Add(std::string_view name, std::optional<std::string>* value,
                     std::string_view help) {
  flags_.push_back({std::string(name), std::string(help), "", false, Setter(value), "text"});
}
void FlagParser::Add(std::string_view name, std::optional<int32_t>* value, std::string_view help) {
  flags_.push_back(
      {std::string(name), std::string(help), "", false, Setter(value), "an integer of 32 bits"});
}
void FlagParser::Add(std::string_view name, std::optional<uint64_t>* value, std::string_view help) {
  flags_.push_back({std::string(name), std::string(help), "", false, Setter(value),
                    "a non-negative integer of 64 bits"});
}
void FlagParser::Add(std::string_view name, std::optional<float>* value, std::string_view help) {
  flags_.push_back(
      {std::string(name), std::string(help), "", false, Setter(value), "a finite number"});
}
void FlagParser::Add(std::string_view name, std::vector<std::string>* value,
                     std::string_view help) {
  auto append = [value](std::string_view text) {
    value->emplace_back(text);
    return true;
  };
  flags_.push_back({std::string(name), std::string(help), "", false, append, "text"});
}

void FlagParser::Add(std::string_view name, std::map<int32_t, float>* value,
                     std::string_view help) {
  auto insert = [value](std::string_view text) {
    const size_t colon = text.find(':');
    int32_t key = 0;
    float number = 0.0f;
    return colon != text.npos && ParseValue(text.substr(0, colon), &key) &&
           ParseValue(text.substr(colon + 1), &number) && value->emplace(key, number).second;
  };
  flags_.push_back({std::string(name), std::string(help), "", false, insert,
                    "an integer, a colon and a finite number, each integer once"});
}

const FlagParser::Flag* FlagParser::Find(std::string_view name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status FlagParser::Parse(std::span<const std::string> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      help_requested_ = true;
      return absl::OkStatus();
    }
    if (!argument.starts_with("--")) {
      return InvalidArgumentError(argument, "is not a flag; flags look like --name=value");
    }
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(2, equals == argument.npos ? equals : equals - 2);
    const Flag* flag = Find(name);
    std::string_view value = equals == argument.npos ? "" : argument.substr(equals + 1);
    if (flag == nullptr && equals == argument.npos && name.starts_with("no")) {
      flag = Find(name.substr(2));
      if (flag != nullptr && !flag->is_bool) flag = nullptr;
      value = "false";
    } else if (flag != nullptr && equals == argument.npos) {
      if (flag->is_bool) {
        value = "true";
      } else if (i + 1 < arguments.size()) {
        value = arguments[++i];
      } else {
        return InvalidArgumentError(argument, "needs a value");
      }
    }
    if (flag == nullptr) {
      return InvalidArgumentError(absl::StrCat("--", ToAbsl(name)),
                                  "is not a flag of this command");
    }
    if (!flag->set(value)) {
      return InvalidArgumentError(
          absl::StrCat("--", flag->name),
          absl::StrCat("must be ", ToAbsl(flag->type), ", not '", ToAbsl(value), "'"));
    }
  }
  return absl::OkStatus();
}

std::string FlagParser::Help() const {
  std::string help = absl::StrCat("usage: ", usage_, "\n\n", summary_, "\n\n");
  for (const Flag& flag : flags_) {
    absl::StrAppend(&help, "  --", flag.name);
    if (!flag.default_value.empty()) absl::StrAppend(&help, "=", flag.default_value);
    absl::StrAppend(&help, "\n      ", flag.help, "\n");
  }
  return help;
}

}  // namespace selfsame::client
