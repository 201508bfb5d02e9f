#pragma once

#include <csignal>
#include <string>

namespace selfsame {

// Turns SIGTERM and SIGINT into a call that returns. Create it in main before any thread starts:
// the signals are blocked in this thread and in every thread started later, as is SIGUSR1, which
// Request uses. SIGPIPE is ignored.
class ShutdownSignal {
 public:
  ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Waits for the first of the signals, or for a request, and returns what it was for the log. A
  // signal after it ends the process at once.
  std::string Wait();

  // Lets Wait return, on behalf of the process itself. Without effect when it already has. Any
  // thread. REQUIRES: there is a ShutdownSignal.
  static void Request();

 private:
  sigset_t signals_;
};

}  // namespace selfsame
