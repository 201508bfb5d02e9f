#include "common/rpc/grpc_server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/process/flags.h"

namespace selfsame {
void RouteLibraryLogs() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    LogLine(LogLevel::kDebug, absl::StrCat("grpc: ", args->message));
  });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& message) {
        LogLine(LogLevel::kDebug, absl::StrCat("protobuf: ", message));
      });
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const std::string& listen, const std::vector<grpc::Service*>& services) {
  ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort("--listen", listen, 0));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  builder.SetMaxSendMessageSize(kMaxGrpcMessageBytes);
  // Two servers on one port would each get some of the calls; the second must fail instead.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Peers may ping idle streams often enough to notice a dead host.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kKeepaliveIntervalMs / 2);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  int bound_port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &bound_port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound_port <= 0) {
    return UnavailableError(
        absl::StrCat("--listen: cannot listen on ", listen,
                     ": the port is in use or the address is not one of this host"));
  }
  return std::unique_ptr<GrpcServer>(
      new GrpcServer(std::move(server), absl::StrCat(host_port.host, ":", bound_port)));
}

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, std::string address)
    : server_(std::move(server)), address_(std::move(address)) {}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::milliseconds(0)); }

void GrpcServer::SetServing(const std::string& name, bool is_serving) {
  server_->GetHealthCheckService()->SetServingStatus(name, is_serving);
}

void GrpcServer::StopServing() { server_->GetHealthCheckService()->Shutdown(); }

void GrpcServer::Shutdown(std::chrono::milliseconds grace) {
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
}

}  // namespace selfsame
