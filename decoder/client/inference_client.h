#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "decoder/client/inference_api.h"

namespace selfsame::client {

struct ConnectOptions {
  std::string server{kDefaultServer};  // HOST:PORT
  double connect_timeout_s = 10.0;
  double request_timeout_s = 0.0;  // 0: none; of all attempts together
};

// Connects over gRPC, without encryption. UNAVAILABLE names the address when nothing answers there
// in time.
absl::StatusOr<std::unique_ptr<InferenceApi>> Connect(const ConnectOptions& options);

}  // namespace selfsame::client
