#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "kernels/ops.h"

namespace selfsame {

// Rotation tables: [position_count, head_dim / 2] each, row-major.
struct RopeVectors {
  std::vector<float> cos;
  std::vector<float> sin;
};

// The angle of (position, i) is position * f_i with f_i = rope_theta^(-2i / head_dim), scaled as
// `config.rope_scaling` says. Everything is computed in double with the four basic operations only
// and rounded to float once, so that the bits are the same on every machine and with every C
// library. REQUIRES: 0 < position_count <= config.max_position_embeddings.
RopeVectors BuildRopeVectors(const ModelConfig& config, int64_t position_count);

// The frequencies f_i: [head_dim / 2].
std::vector<double> RopeFrequencies(const ModelConfig& config);

// Copies the vectors to the device, cos first, then sin. REQUIRES: as BuildRopeVectors.
absl::StatusOr<std::unique_ptr<DeviceBuffer>> UploadRopeTable(const ModelConfig& config,
                                                              int64_t position_count, Ops& ops);

// Views a buffer that UploadRopeTable made with the same arguments.
RopeTable RopeTableOf(const DeviceBuffer& buffer, const ModelConfig& config,
                      int64_t position_count);

namespace internal {

// Natural logarithm of a positive, finite, normal x.
double PortableLog(double x);
// e^x for |x| < 700.
double PortableExp(double x);
struct CosSin {
  double cos;
  double sin;
};
// For 0 <= angle < 2^22.
CosSin PortableCosSin(double angle);

}  // namespace internal
}  // namespace selfsame
