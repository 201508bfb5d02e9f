#include "common/process/shutdown_signal.h"

#include "common/check.h"

namespace selfsame {

ShutdownSignal::ShutdownSignal() {
  std::signal(SIGPIPE, SIG_IGN);
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  SELFSAME_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0);
}

int ShutdownSignal::Wait() {
  int signal_number = 0;
  SELFSAME_CHECK(sigwait(&signals_, &signal_number) == 0);
  SELFSAME_CHECK(pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr) == 0);
  return signal_number;
}

}  // namespace selfsame
