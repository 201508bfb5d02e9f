#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace selfsame::testing {

// A program, running as a child. It is killed with the object, and by the kernel if
// the test itself dies. One thread.
class ChildProcess {
 public:
  // Starts `program`: a path, or the name of one of this build in BUILD_DIR/bin. Its standard error
  // goes to a file that stderr_text() reads.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::string& program, const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line of standard output, without its end; an error, with what the program wrote to
  // standard error, when there is none.
  absl::StatusOr<std::string> ReadLine();
  // Reads "listening on HOST:PORT".
  absl::StatusOr<std::string> ReadAddress();

  void Signal(int signal_number);
  // Waits for the end: the exit status, or minus the signal that ended it.
  int Wait();
  std::string stderr_text() const;

 private:
  ChildProcess(pid_t pid, int stdout_fd, std::string stderr_path);

  pid_t pid_;
  int stdout_fd_;
  std::string stderr_path_;
  std::string pending_;  // output read, not yet returned
  bool has_ended_ = false;
  int exit_status_ = 0;
};

}  // namespace selfsame::testing
