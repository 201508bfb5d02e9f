#include "tests/integration/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace selfsame::testing {
namespace {

constexpr char kListening[] = "listening on ";

// The child's side between fork and exec: async-signal-safe calls only.
[[noreturn]] void ExecChild(char* const* arguments, int stdout_fd, int stderr_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(stdout_fd, STDOUT_FILENO);
  dup2(stderr_fd, STDERR_FILENO);
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& program, const std::vector<std::string>& arguments) {
  const bool is_ours = !absl::StartsWith(program, "/");
  std::vector<std::string> words = {is_ours ? absl::StrCat(SELFSAME_BINARY_DIR, "/bin/", program)
                                            : program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  std::string stderr_path = ::testing::TempDir() + "selfsame-stderr-XXXXXX";
  const int stderr_fd = mkstemp(stderr_path.data());
  int pipe_fds[2];
  if (stderr_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return absl::InternalError("cannot make a pipe or a temporary file");
  }
  const pid_t pid = fork();
  if (pid == 0) ExecChild(pointers.data(), pipe_fds[1], stderr_fd);
  close(stderr_fd);
  close(pipe_fds[1]);
  if (pid < 0) return absl::InternalError("cannot fork");
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, pipe_fds[0], stderr_path));
}

ChildProcess::ChildProcess(pid_t pid, int stdout_fd, std::string stderr_path)
    : pid_(pid), stdout_fd_(stdout_fd), stderr_path_(std::move(stderr_path)) {}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  Wait();
  close(stdout_fd_);
  unlink(stderr_path_.c_str());
}

absl::StatusOr<std::string> ChildProcess::ReadLine() {
  for (;;) {
    const size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t size = read(stdout_fd_, buffer, sizeof(buffer));
    if (size <= 0) {
      return absl::UnavailableError(absl::StrCat("no output; standard error: ", stderr_text()));
    }
    pending_.append(buffer, size);
  }
}

absl::StatusOr<std::string> ChildProcess::ReadAddress() {
  absl::StatusOr<std::string> line = ReadLine();
  if (!line.ok()) return line.status();
  if (!absl::StartsWith(*line, kListening)) {
    return absl::InternalError(absl::StrCat("unexpected output: ", *line));
  }
  return line->substr(sizeof(kListening) - 1);
}

void ChildProcess::Signal(int signal_number) {
  if (!has_ended_) kill(pid_, signal_number);
}

int ChildProcess::Wait() {
  if (has_ended_) return exit_status_;
  int status = 0;
  waitpid(pid_, &status, 0);
  has_ended_ = true;
  exit_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return exit_status_;
}

std::string ChildProcess::stderr_text() const {
  std::ifstream file(stderr_path_);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace selfsame::testing
