#include "common/rpc/grpc_server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace selfsame {
namespace {

TEST(GrpcServerTest, ReportsTheBoundPort) {
  const auto server = GrpcServer::Start("127.0.0.1:0", {});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->address().rfind("127.0.0.1:", 0), 0u);
  EXPECT_NE((*server)->address(), "127.0.0.1:0");
}

TEST(GrpcServerTest, PortInUseIsAnError) {
  const auto server = GrpcServer::Start("127.0.0.1:0", {});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto second = GrpcServer::Start((*server)->address(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find((*server)->address()), std::string::npos);
}

TEST(GrpcServerTest, MalformedAddressNamesTheFlag) {
  for (const char* listen :
       {"", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:x", "host:70000", "host:-1"}) {
    const auto server = GrpcServer::Start(listen, {});
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << listen;
    EXPECT_EQ(server.status().message().find("--listen: "), 0u) << listen;
  }
}

TEST(GrpcServerTest, ShutdownTwiceIsHarmless) {
  const auto server = GrpcServer::Start("127.0.0.1:0", {});
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->SetServing("name", true);
  (*server)->StopServing();
  (*server)->Shutdown(std::chrono::milliseconds(10));
  (*server)->Shutdown(std::chrono::milliseconds(10));
}

}  // namespace
}  // namespace selfsame
