#include "decoder/client/files.h"

#include <fstream>

#include "common/errors.h"

namespace selfsame::client {

absl::Status WriteTextFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) return FileError(path, "cannot be written");
  return absl::OkStatus();
}

}  // namespace selfsame::client
