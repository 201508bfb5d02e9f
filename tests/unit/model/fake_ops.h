#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/float16.h"
#include "kernels/ops.h"

namespace selfsame {

// What was packed, as bf16 bits: [n, k].
class FakeMatrix : public PackedMatrix {
 public:
  FakeMatrix(int64_t n, int64_t k, std::vector<uint16_t> bits)
      : PackedMatrix(n, k), bits_(std::move(bits)) {}
  const std::vector<uint16_t>& bits() const { return bits_; }

 private:
  std::vector<uint16_t> bits_;
};

class FakeBuffer : public DeviceBuffer {
 public:
  explicit FakeBuffer(size_t size_bytes) : memory_(size_bytes) {
    data_ = memory_.data();
    size_bytes_ = size_bytes;
  }

 private:
  std::vector<char> memory_;
};

// A backend that stores weights and computes nothing. Its memory can run out.
class FakeOps : public Ops {
 public:
  explicit FakeOps(size_t free_bytes = SIZE_MAX) : free_bytes_(free_bytes) {}

  Schedule schedule() const override { return Schedule::kFast; }
  std::string ArithmeticId() const override { return "fake"; }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t size_bytes) override {
    if (size_bytes > free_bytes_) return absl::ResourceExhaustedError("device memory");
    free_bytes_ -= size_bytes;
    return std::make_unique<FakeBuffer>(size_bytes);
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackMatrix(
      std::span<const MatrixPart> parts) override {
    std::vector<uint16_t> bits;
    int64_t n = 0;
    for (const MatrixPart& part : parts) {
      SELFSAME_CHECK(part.cols == parts.front().cols && part.row_stride >= part.cols);
      n += part.rows;
      for (int64_t row = 0; row < part.rows; ++row) {
        for (int64_t col = 0; col < part.cols; ++col) {
          bits.push_back(Element(part, row * part.row_stride + col).bits);
        }
      }
    }
    return std::make_unique<FakeMatrix>(n, parts.front().cols, std::move(bits));
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> GenerateMatrix(
      std::span<const SyntheticPart> parts) override {
    std::vector<uint16_t> bits;
    for (const BFloat16 value : SyntheticRows(parts)) bits.push_back(value.bits);
    const auto cols = parts.front().cols;
    const auto n = static_cast<int64_t>(bits.size()) / cols;
    return std::make_unique<FakeMatrix>(n, cols, std::move(bits));
  }

  void CopyToDevice(void* to, const void* from, size_t size) override {
    std::memcpy(to, from, size);
  }
  void CopyToHost(void* to, const void* from, size_t size) override { std::memcpy(to, from, size); }

  void BeginPass(const Pass&) override { std::abort(); }
  absl::Status EndPass() override { std::abort(); }
  void Embed(const PackedMatrix&, BFloat16*) override { std::abort(); }
  void RmsNorm(const BFloat16*, const BFloat16*, float, int32_t, int32_t, BFloat16*) override {
    std::abort();
  }
  void AddRmsNorm(BFloat16*, const BFloat16*, const BFloat16*, float, int32_t, int32_t,
                  BFloat16*) override {
    std::abort();
  }
  void Gemm(const BFloat16*, int32_t, const PackedMatrix&, const BFloat16*, BFloat16*) override {
    std::abort();
  }
  void Logits(const BFloat16*, int32_t, const PackedMatrix&, float*) override { std::abort(); }
  void GatherLogitRows(const BFloat16*, int32_t, BFloat16*) override { std::abort(); }
  void RopeAndStoreKv(const AttentionShape&, const QkNorm*, const RopeTable&, BFloat16*,
                      KvLayer) override {
    std::abort();
  }
  void Attention(const AttentionShape&, const BFloat16*, KvLayer, BFloat16*) override {
    std::abort();
  }
  void SiluMul(const BFloat16*, int32_t, int32_t, BFloat16*) override { std::abort(); }
  void ReduceRanks(BFloat16*, int64_t) override { std::abort(); }
  void Sample(const float*, int32_t, std::span<const SampleRow>, std::span<SampledToken>) override {
    std::abort();
  }

 private:
  static BFloat16 Element(const MatrixPart& part, int64_t index) {
    switch (part.dtype) {
      case DType::kBFloat16:
        return static_cast<const BFloat16*>(part.data)[index];
      case DType::kFloat16:
        return ToBFloat16(HalfToFloat(static_cast<const uint16_t*>(part.data)[index]));
      case DType::kFloat32:
        return ToBFloat16(static_cast<const float*>(part.data)[index]);
    }
    std::abort();
  }

  size_t free_bytes_;
};

}  // namespace selfsame
