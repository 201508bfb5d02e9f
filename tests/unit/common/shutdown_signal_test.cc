#include "common/process/shutdown_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

namespace selfsame {
namespace {

TEST(ShutdownSignalTest, TheFirstSignalIsNamed) {
  ShutdownSignal shutdown;
  kill(getpid(), SIGINT);
  EXPECT_EQ(shutdown.Wait(), "signal 2");
}

TEST(ShutdownSignalTest, ARequestFromAnotherThreadEndsTheWait) {
  ShutdownSignal shutdown;
  std::thread thread(ShutdownSignal::Request);
  EXPECT_EQ(shutdown.Wait(), "own request");
  thread.join();
}

TEST(ShutdownSignalTest, ARequestAfterTheSignalDoesNothing) {
  ShutdownSignal shutdown;
  kill(getpid(), SIGTERM);
  EXPECT_EQ(shutdown.Wait(), "signal 15");
  ShutdownSignal::Request();  // by default a signal would end the test
}

TEST(ShutdownSignalTest, ASignalAfterTheFirstEndsTheProcess) {
  ShutdownSignal shutdown;
  EXPECT_EXIT(
      {
        ShutdownSignal::Request();
        static_cast<void>(shutdown.Wait());
        kill(getpid(), SIGTERM);
        _exit(0);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace selfsame
