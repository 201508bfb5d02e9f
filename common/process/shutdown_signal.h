#pragma once

#include <csignal>

namespace selfsame {

// Turns SIGTERM and SIGINT into a call that returns. Create it in main before any thread starts:
// the signals are blocked in this thread and in every thread started later. SIGPIPE is ignored.
class ShutdownSignal {
 public:
  ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Waits for the first of the signals and returns its number. A second one then ends the process
  // at once.
  int Wait();

 private:
  sigset_t signals_;
};

}  // namespace selfsame
