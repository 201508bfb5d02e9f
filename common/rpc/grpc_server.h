#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace selfsame {

// Sends gRPC's and protobuf's own log lines to ours, at debug level: what they report reaches the
// caller as a status anyway. Called once by main.
void RouteLibraryLogs();

// A listening gRPC server with health checks, reflection and our message limits.
class GrpcServer {
 public:
  // `listen` is HOST:PORT, port 0 for any free one. `services` must outlive the server.
  // INVALID_ARGUMENT for a malformed address, UNAVAILABLE when it cannot be bound (a port in use).
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const std::string& listen, const std::vector<grpc::Service*>& services);
  // Cancels what still runs.
  ~GrpcServer();

  // HOST:PORT with the port really bound.
  const std::string& address() const { return address_; }

  // What the health service says of `name`; names never set are NOT_FOUND. The empty name speaks
  // for the process and starts as serving.
  void SetServing(const std::string& name, bool is_serving);

  // Every health name becomes NOT_SERVING for good: the first step of a drain.
  void StopServing();

  // Refuses new calls, waits up to `grace` for those in progress, cancels the rest. Idempotent.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, std::string address);

  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace selfsame
