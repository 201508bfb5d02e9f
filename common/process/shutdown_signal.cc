#include "common/process/shutdown_signal.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace selfsame {
namespace {

// Unlike the signals it stays blocked, so that a request that comes late does nothing.
constexpr int kRequestSignal = SIGUSR1;

}  // namespace

ShutdownSignal::ShutdownSignal() {
  std::signal(SIGPIPE, SIG_IGN);
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  sigset_t blocked = signals_;
  sigaddset(&blocked, kRequestSignal);
  SELFSAME_CHECK(pthread_sigmask(SIG_BLOCK, &blocked, nullptr) == 0);
}

std::string ShutdownSignal::Wait() {
  sigset_t awaited = signals_;
  sigaddset(&awaited, kRequestSignal);
  int signal_number = 0;
  SELFSAME_CHECK(sigwait(&awaited, &signal_number) == 0);
  SELFSAME_CHECK(pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr) == 0);
  return signal_number == kRequestSignal ? "own request" : absl::StrCat("signal ", signal_number);
}

void ShutdownSignal::Request() { kill(getpid(), kRequestSignal); }

}  // namespace selfsame
