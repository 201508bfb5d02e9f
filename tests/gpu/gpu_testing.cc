#include "tests/gpu/gpu_testing.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace selfsame::testing {

std::unique_ptr<Ops> MakeCudaOps(const CudaOptions& options) {
  auto ops = CreateCudaOps(options);
  if (!ops.ok()) {
    std::fprintf(stderr, "%s\n", ops.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(ops);
}

float PseudoNormal(uint64_t seed, uint64_t index) {
  uint64_t x = index * 0x9e3779b97f4a7c15u + (seed + 1) * 0xd1342543de82ef95u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  const auto sum =
      static_cast<int32_t>((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
  return static_cast<float>(sum - 131070) * (1.0f / 37837.0f);
}

std::vector<BFloat16> RandomRows(uint64_t seed, int64_t count, float scale) {
  std::vector<BFloat16> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = ToBFloat16(PseudoNormal(seed, i) * scale);
  return values;
}

std::unique_ptr<PackedMatrix> Pack(Ops& ops, const std::vector<BFloat16>& values, int64_t n,
                                   int64_t k) {
  const MatrixPart part = {.data = values.data(), .rows = n, .cols = k, .row_stride = k};
  auto matrix = ops.PackMatrix({&part, 1});
  SELFSAME_CHECK(matrix.ok());
  return *std::move(matrix);
}

double RelativeError(std::span<const double> got, std::span<const double> reference) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    difference += (got[i] - reference[i]) * (got[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return std::sqrt(difference / norm);
}

size_t CountDifferent(std::span<const BFloat16> a, std::span<const BFloat16> b) {
  SELFSAME_CHECK(a.size() == b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i].bits != b[i].bits ? 1 : 0;
  return count;
}

size_t CountDifferent(std::span<const float> a, std::span<const float> b) {
  SELFSAME_CHECK(a.size() == b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    count += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) ? 1 : 0;
  }
  return count;
}

float Butterfly(std::array<float, 32> lanes) {
  for (size_t offset = 16; offset > 0; offset /= 2) {
    const std::array<float, 32> old = lanes;
    for (size_t lane = 0; lane < 32; ++lane) lanes[lane] = old[lane] + old[lane ^ offset];
  }
  return lanes[0];
}

std::vector<double> ToDouble(std::span<const BFloat16> values) {
  std::vector<double> result;
  result.reserve(values.size());
  for (const BFloat16 value : values) result.push_back(ToFloat(value));
  return result;
}

}  // namespace selfsame::testing
