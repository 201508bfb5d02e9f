#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/integration/child_process.h"
#include "tests/integration/test_client.h"

namespace selfsame::testing {

inline constexpr char kHealthName[] = "selfsame.v1.Inference";
inline constexpr char kDeterministicHealthName[] = "selfsame.v1.Inference/deterministic";

struct ClusterOptions {
  std::string model_dir;
  std::vector<std::string> decoder_flags;
  std::vector<std::string> verifier_flags;
  int verifier_count = 1;
  std::string verifier_program = "selfsame-verifier";
  std::string decoder_program = "selfsame-decoder";
  // Added to --verifiers, before the real ones.
  std::vector<std::string> other_verifiers;
};

// The real processes on free ports: verifiers, and a decoder that knows them. One thread drives it.
class Cluster {
 public:
  // Starts everything and, where there are verifiers, waits until one is connected.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const ClusterOptions& options);

  TestClient& client() { return *client_; }
  ChildProcess& decoder() { return *decoder_; }
  ChildProcess& verifier(int index) { return *verifiers_[index]; }
  const std::string& decoder_address() const { return decoder_address_; }
  const std::string& verifier_address(int index) const { return verifier_addresses_[index]; }

  // SIGKILL; returns when the process is gone.
  void KillVerifier(int index);
  // Starts a killed verifier again, at its old address.
  absl::Status RestartVerifier(int index);
  // The decoder, killed and started anew at its old address; the same for client().
  void KillDecoder();
  absl::Status RestartDecoder();
  // SIGTERM to the decoder; its exit status.
  int StopDecoder();

 private:
  explicit Cluster(const ClusterOptions& options) : options_(options) {}
  absl::StatusOr<std::string> StartVerifier(int index, const std::string& listen);
  absl::Status StartDecoder(const std::string& listen);

  const ClusterOptions options_;
  std::vector<std::unique_ptr<ChildProcess>> verifiers_;
  std::vector<std::string> verifier_addresses_;
  std::unique_ptr<ChildProcess> decoder_;
  std::string decoder_address_;
  std::unique_ptr<TestClient> client_;
};

// Flags that both services get in tests: two threads at most, little memory.
std::vector<std::string> TestServiceFlags(const std::string& model_dir);

}  // namespace selfsame::testing
