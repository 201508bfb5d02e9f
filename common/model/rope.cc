#include "common/model/rope.h"

#include <cmath>

#include "common/check.h"

namespace selfsame {
namespace internal {

// Constants are split so that the product of the leading part with a small integer is exact:
// 32 bits of ln 2, 30 + 30 bits of pi / 2.
constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kInverseLn2 = 0x1.71547652b82fep+0;
constexpr double kHalfPiHigh = 0x1.921fb54000000p+0;
constexpr double kHalfPiMiddle = 0x1.10b4611800000p-30;
constexpr double kHalfPiLow = 0x1.313198a2e0370p-61;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;

double PortableLog(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // exact
  if (mantissa < kSqrtHalf) {
    mantissa *= 2.0;
    --exponent;
  }
  // log(m) = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172: 12 terms leave less than 1e-19.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  double series = 0.0;
  for (int n = 23; n >= 3; n -= 2) series = (series + 1.0 / n) * square;
  const double log_mantissa = 2.0 * (s + s * series);
  return exponent * kLn2High + (exponent * kLn2Low + log_mantissa);
}

double PortableExp(double x) {
  const double multiple = std::floor(x * kInverseLn2 + 0.5);
  const double rest = (x - multiple * kLn2High) - multiple * kLn2Low;
  // Taylor series, |rest| < 0.35: 15 terms leave less than 1e-20.
  double series = 1.0;
  for (int n = 15; n >= 1; --n) series = 1.0 + series * rest / n;
  return std::ldexp(series, static_cast<int>(multiple));  // exact
}

CosSin PortableCosSin(double angle) {
  const double quarter_turns = std::floor(angle * kTwoOverPi + 0.5);
  // quarter_turns is below 2^22, so the first two products are exact.
  const double rest = ((angle - quarter_turns * kHalfPiHigh) - quarter_turns * kHalfPiMiddle) -
                      quarter_turns * kHalfPiLow;
  // Taylor series, |rest| < 0.79: the terms left out are below 1e-19.
  const double square = rest * rest;
  double cos = 1.0;
  for (int n = 18; n >= 2; n -= 2) cos = 1.0 - cos * square / (n * (n - 1));
  double sin = 1.0;
  for (int n = 19; n >= 3; n -= 2) sin = 1.0 - sin * square / (n * (n - 1));
  sin *= rest;
  switch (static_cast<int64_t>(quarter_turns) & 3) {
    case 0:
      return {cos, sin};
    case 1:
      return {-sin, cos};
    case 2:
      return {-cos, -sin};
    default:
      return {sin, -cos};
  }
}

}  // namespace internal

namespace {

constexpr double kTwoPi = 0x1.921fb54442d18p+2;

// Llama 3.1: long wavelengths are stretched by `factor`, short ones stay, those between are
// blended.
double ScaleFrequency(const Llama3RopeScaling& scaling, double frequency) {
  const double original_length = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = kTwoPi / frequency;
  if (wavelength < original_length / scaling.high_freq_factor) return frequency;
  if (wavelength > original_length / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth = (original_length / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * (frequency / scaling.factor) + smooth * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(const ModelConfig& config) {
  const double log_theta = internal::PortableLog(config.rope_theta);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < config.head_dim / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(config.head_dim);
    double frequency = internal::PortableExp(-exponent * log_theta);
    if (config.rope_scaling.has_value()) {
      frequency = ScaleFrequency(*config.rope_scaling, frequency);
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

RopeVectors BuildRopeVectors(const ModelConfig& config, int64_t position_count) {
  SELFSAME_CHECK(position_count > 0 && position_count <= config.max_position_embeddings);
  const std::vector<double> frequencies = RopeFrequencies(config);
  RopeVectors vectors;
  vectors.cos.reserve(position_count * frequencies.size());
  vectors.sin.reserve(position_count * frequencies.size());
  for (int64_t position = 0; position < position_count; ++position) {
    for (const double frequency : frequencies) {
      const auto [cos, sin] = internal::PortableCosSin(static_cast<double>(position) * frequency);
      vectors.cos.push_back(static_cast<float>(cos));
      vectors.sin.push_back(static_cast<float>(sin));
    }
  }
  return vectors;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> UploadRopeTable(const ModelConfig& config,
                                                              int64_t position_count, Ops& ops) {
  const RopeVectors vectors = BuildRopeVectors(config, position_count);
  const size_t size_bytes = vectors.cos.size() * sizeof(float);
  auto buffer = ops.Allocate(2 * size_bytes);
  if (!buffer.ok()) return buffer.status();
  char* device = static_cast<char*>((*buffer)->data());
  ops.CopyToDevice(device, vectors.cos.data(), size_bytes);
  ops.CopyToDevice(device + size_bytes, vectors.sin.data(), size_bytes);
  return buffer;
}

RopeTable RopeTableOf(const DeviceBuffer& buffer, const ModelConfig& config,
                      int64_t position_count) {
  const int64_t count = position_count * config.head_dim / 2;
  SELFSAME_CHECK(buffer.size_bytes() >= 2 * count * sizeof(float));
  const float* cos = static_cast<const float*>(buffer.data());
  return {.cos = cos, .sin = cos + count, .max_positions = static_cast<int32_t>(position_count)};
}

}  // namespace selfsame
