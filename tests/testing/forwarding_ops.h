#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace selfsame::testing {

// Passes every call on; a test overrides the one it wants to spoil.
class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}

  Schedule schedule() const override { return ops_->schedule(); }
  std::string ArithmeticId() const override { return ops_->ArithmeticId(); }
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t size_bytes) override {
    return ops_->Allocate(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackMatrix(
      std::span<const MatrixPart> parts) override {
    return ops_->PackMatrix(parts);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> GenerateMatrix(
      std::span<const SyntheticPart> parts) override {
    return ops_->GenerateMatrix(parts);
  }
  void CopyToDevice(void* to_device, const void* from_host, size_t size_bytes) override {
    ops_->CopyToDevice(to_device, from_host, size_bytes);
  }
  void CopyToHost(void* to_host, const void* from_device, size_t size_bytes) override {
    ops_->CopyToHost(to_host, from_device, size_bytes);
  }
  int32_t runs_to_settle() const override { return ops_->runs_to_settle(); }
  uint64_t replay_count() const override { return ops_->replay_count(); }
  void ForgetPasses() override { ops_->ForgetPasses(); }
  std::vector<int32_t> WarmUpRowCounts(int32_t max_rows) const override {
    return ops_->WarmUpRowCounts(max_rows);
  }
  void BeginPass(const Pass& pass) override {
    pass_ = pass;
    ops_->BeginPass(pass);
  }
  absl::Status EndPass() override { return ops_->EndPass(); }
  void Embed(const PackedMatrix& table, BFloat16* out) override { ops_->Embed(table, out); }
  void RmsNorm(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t rows,
               int32_t width, BFloat16* out) override {
    ops_->RmsNorm(x, weight, epsilon, rows, width, out);
  }
  void AddRmsNorm(BFloat16* residual, const BFloat16* x, const BFloat16* weight, float epsilon,
                  int32_t rows, int32_t width, BFloat16* out) override {
    ops_->AddRmsNorm(residual, x, weight, epsilon, rows, width, out);
  }
  void Gemm(const BFloat16* x, int32_t rows, const PackedMatrix& w, const BFloat16* bias,
            BFloat16* y) override {
    ops_->Gemm(x, rows, w, bias, y);
  }
  void Logits(const BFloat16* x, int32_t rows, const PackedMatrix& w, float* y) override {
    ops_->Logits(x, rows, w, y);
  }
  void GatherLogitRows(const BFloat16* x, int32_t width, BFloat16* out) override {
    ops_->GatherLogitRows(x, width, out);
  }
  void RopeAndStoreKv(const AttentionShape& shape, const QkNorm* norm, const RopeTable& rope,
                      BFloat16* qkv, KvLayer kv) override {
    ops_->RopeAndStoreKv(shape, norm, rope, qkv, kv);
  }
  void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                 BFloat16* out) override {
    ops_->Attention(shape, qkv, kv, out);
  }
  void SiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out) override {
    ops_->SiluMul(gate_up, rows, width, out);
  }
  void ReduceRanks(BFloat16* x, int64_t count) override { ops_->ReduceRanks(x, count); }
  void Sample(const float* logits, int32_t vocab, std::span<const SampleRow> params,
              std::span<SampledToken> out) override {
    ops_->Sample(logits, vocab, params, out);
  }

 protected:
  const Pass& pass() const { return pass_; }

 private:
  std::unique_ptr<Ops> ops_;
  Pass pass_;
};

}  // namespace selfsame::testing
