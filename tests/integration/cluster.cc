#include "tests/integration/cluster.h"

#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"

namespace selfsame::testing {

std::vector<std::string> TestServiceFlags(const std::string& model_dir) {
  return {absl::StrCat("--model_dir=", model_dir), "--threads=2", "--kv_size_mb=64"};
}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const ClusterOptions& options) {
  std::unique_ptr<Cluster> cluster(new Cluster(options));
  cluster->verifiers_.resize(options.verifier_count);
  cluster->verifier_addresses_.resize(options.verifier_count);
  for (int i = 0; i < options.verifier_count; ++i) {
    ASSIGN_OR_RETURN(cluster->verifier_addresses_[i], cluster->StartVerifier(i, "127.0.0.1:0"));
  }
  RETURN_IF_ERROR(cluster->StartDecoder("127.0.0.1:0"));
  if (options.verifier_count > 0 &&
      !cluster->client_->WaitForHealth(kDeterministicHealthName, true)) {
    return absl::DeadlineExceededError(
        absl::StrCat("no verifier connected: ", cluster->decoder_->stderr_text()));
  }
  return cluster;
}

absl::StatusOr<std::string> Cluster::StartVerifier(int index, const std::string& listen) {
  std::vector<std::string> flags = TestServiceFlags(options_.model_dir);
  flags.push_back(absl::StrCat("--listen=", listen));
  flags.insert(flags.end(), options_.verifier_flags.begin(), options_.verifier_flags.end());
  ASSIGN_OR_RETURN(verifiers_[index], ChildProcess::Start(options_.verifier_program, flags));
  return verifiers_[index]->ReadAddress();
}

absl::Status Cluster::StartDecoder(const std::string& listen) {
  std::vector<std::string> verifiers = options_.other_verifiers;
  verifiers.insert(verifiers.end(), verifier_addresses_.begin(), verifier_addresses_.end());
  std::vector<std::string> flags = TestServiceFlags(options_.model_dir);
  flags.push_back(absl::StrCat("--listen=", listen));
  flags.push_back(absl::StrCat("--verifiers=", absl::StrJoin(verifiers, ",")));
  flags.insert(flags.end(), options_.decoder_flags.begin(), options_.decoder_flags.end());
  ASSIGN_OR_RETURN(decoder_, ChildProcess::Start(options_.decoder_program, flags));
  ASSIGN_OR_RETURN(decoder_address_, decoder_->ReadAddress());
  if (client_ == nullptr) client_ = std::make_unique<TestClient>(decoder_address_);
  return absl::OkStatus();
}

void Cluster::KillVerifier(int index) {
  verifiers_[index]->Signal(SIGKILL);
  verifiers_[index]->Wait();
}

absl::Status Cluster::RestartVerifier(int index) {
  return StartVerifier(index, verifier_addresses_[index]).status();
}

void Cluster::KillDecoder() {
  decoder_->Signal(SIGKILL);
  decoder_->Wait();
}

absl::Status Cluster::RestartDecoder() { return StartDecoder(decoder_address_); }

int Cluster::StopDecoder() {
  decoder_->Signal(SIGTERM);
  return decoder_->Wait();
}

}  // namespace selfsame::testing
