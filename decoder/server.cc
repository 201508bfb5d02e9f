#include "decoder/server.h"

#include <utility>

#include "common/errors.h"

namespace selfsame::decoder {

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& listen,
                                                      InferenceService& service,
                                                      VerifierEvents& engine_events,
                                                      std::vector<VerifierClient*> verifiers,
                                                      bool is_authority) {
  ASSIGN_OR_RETURN(std::unique_ptr<GrpcServer> grpc_server, GrpcServer::Start(listen, {&service}));
  std::unique_ptr<Server> server(
      new Server(std::move(grpc_server), engine_events, std::move(verifiers)));
  server->grpc_server_->SetServing(kHealthName, true);
  server->grpc_server_->SetServing(kDeterministicHealthName, is_authority);
  for (VerifierClient* verifier : server->verifiers_) verifier->Start(*server);
  return server;
}

Server::Server(std::unique_ptr<GrpcServer> grpc_server, VerifierEvents& engine_events,
               std::vector<VerifierClient*> verifiers)
    : grpc_server_(std::move(grpc_server)),
      engine_events_(engine_events),
      verifiers_(std::move(verifiers)) {}

Server::~Server() { Shutdown(std::chrono::milliseconds(0)); }

void Server::StopServing() { grpc_server_->StopServing(); }

void Server::Shutdown(std::chrono::milliseconds grace) {
  grpc_server_->Shutdown(grace);
  for (VerifierClient* verifier : verifiers_) verifier->Stop();
}

void Server::SetVerifierUp(int verifier, bool is_up) {
  MutexLock lock(mutex_);
  if (is_up) {
    verifiers_up_.insert(verifier);
  } else {
    verifiers_up_.erase(verifier);
  }
  grpc_server_->SetServing(kDeterministicHealthName, !verifiers_up_.empty());
}

void Server::OnVerifierUp(int verifier, VerifierInfo info) {
  engine_events_.OnVerifierUp(verifier, std::move(info));
  SetVerifierUp(verifier, true);
}

void Server::OnVerifierDown(int verifier, absl::Status status) {
  SetVerifierUp(verifier, false);
  engine_events_.OnVerifierDown(verifier, std::move(status));
}

void Server::OnVerdict(int verifier, Verdict verdict) {
  engine_events_.OnVerdict(verifier, std::move(verdict));
}

void Server::OnSessionError(int verifier, uint64_t session_id, absl::Status status) {
  engine_events_.OnSessionError(verifier, session_id, std::move(status));
}

}  // namespace selfsame::decoder
