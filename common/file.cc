#include "common/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace selfsame {

absl::StatusOr<std::string> ReadFile(std::string_view path, int64_t max_size_bytes) {
  // O_NONBLOCK: opening a named pipe must fail below, not wait for a writer.
  const int fd = ::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(path, std::strerror(errno));
  const absl::Cleanup close_fd = [fd] { ::close(fd); };

  struct stat info;
  if (::fstat(fd, &info) != 0) return FileError(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return FileError(path, "is not a regular file");
  if (info.st_size > max_size_bytes) {
    return FileError(path,
                     absl::StrCat("has ", info.st_size, " bytes; the limit is ", max_size_bytes));
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = ::read(fd, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(path, std::strerror(errno));
    if (count == 0) return FileError(path, "became shorter while it was read");
    done += static_cast<size_t>(count);
  }
  return content;
}

bool PathExists(std::string_view path) {
  struct stat info;
  return ::lstat(std::string(path).c_str(), &info) == 0;
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && path.back() != '/') path.push_back('/');
  return path.append(name);
}

}  // namespace selfsame
