#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "tests/testing/tiny_model.h"

namespace selfsame::fuzz {

// A directory for files that are written anew for each input.
class FuzzDirectory {
 public:
  const std::string& path() const { return dir_.path(); }

  void Write(const std::string& name, std::string_view bytes) const {
    std::ofstream file(path() + "/" + name, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    SELFSAME_CHECK(file.good());
  }

 private:
  testing::TempDir dir_;
};

inline std::string_view ToText(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What stands before the first zero byte, and what after it.
inline std::pair<std::string_view, std::string_view> SplitAtZero(std::string_view text) {
  const size_t zero = text.find('\0');
  if (zero == std::string_view::npos) return {text, {}};
  return {text.substr(0, zero), text.substr(zero + 1)};
}

}  // namespace selfsame::fuzz
