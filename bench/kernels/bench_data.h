#pragma once

// Data for the kernel benchmarks.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"

namespace selfsame::bench {

inline std::unique_ptr<Ops> MakeOps(Schedule schedule, int threads) {
  auto ops = CreateCpuOps({.schedule = schedule, .thread_count = threads});
  if (!ops.ok()) std::abort();
  return *std::move(ops);
}

// Values in [-0.5, 0.5).
inline std::vector<BFloat16> RandomBFloat16(int64_t count) {
  std::vector<BFloat16> values(count);
  uint64_t state = 1;
  for (BFloat16& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = ToBFloat16(static_cast<float>(state >> 40) * 0x1p-24f - 0.5f);
  }
  return values;
}

inline std::unique_ptr<PackedMatrix> RandomMatrix(Ops& ops, int64_t n, int64_t k) {
  const std::vector<BFloat16> values = RandomBFloat16(n * k);
  const MatrixPart part = {values.data(), DType::kBFloat16, n, k, k};
  return *ops.PackMatrix({&part, 1});
}

// A pass of equally long sequences in their own blocks.
class PagedSequences {
 public:
  PagedSequences(int32_t sequence_count, int32_t rows_each, int32_t cached) {
    const int32_t blocks_each = (cached + rows_each + kKvBlockTokens - 1) / kKvBlockTokens;
    for (int32_t i = 0; i < sequence_count; ++i) {
      auto& table = tables_.emplace_back();
      for (int32_t block = 0; block < blocks_each; ++block) {
        table.push_back(block * sequence_count + i);
      }
      rows_.push_back({i * rows_each, rows_each, cached, table.data()});
      for (int32_t row = 0; row < rows_each; ++row) {
        token_ids_.push_back((i * 131 + row * 7) % 1000);
        positions_.push_back(cached + row);
      }
      logit_rows_.push_back((i + 1) * rows_each - 1);
    }
    block_count_ = blocks_each * sequence_count;
    pass_.row_count = sequence_count * rows_each;
    pass_.token_ids = token_ids_;
    pass_.positions = positions_;
    pass_.sequences = rows_;
    pass_.logit_rows = logit_rows_;
  }
  PagedSequences(const PagedSequences&) = delete;
  PagedSequences& operator=(const PagedSequences&) = delete;

  const Pass& pass() const { return pass_; }
  int32_t block_count() const { return block_count_; }

 private:
  std::vector<std::vector<int32_t>> tables_;
  std::vector<SequenceRows> rows_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> logit_rows_;
  int32_t block_count_ = 0;
  Pass pass_;
};

// The buffers of a forward pass.
class Activations {
 public:
  Activations(Ops& ops, int32_t rows, int32_t width, int32_t logit_rows, int32_t vocab)
      : residual(Take<BFloat16>(ops, int64_t{rows} * width)),
        normal(Take<BFloat16>(ops, int64_t{rows} * width)),
        wide(Take<BFloat16>(ops, int64_t{rows} * width)),
        mixed(Take<BFloat16>(ops, int64_t{rows} * width)),
        logits(Take<float>(ops, int64_t{logit_rows} * vocab)) {}

 private:
  template <typename T>
  T* Take(Ops& ops, int64_t count) {
    buffers_.push_back(*ops.Allocate(count * sizeof(T)));
    return static_cast<T*>(buffers_.back()->data());
  }
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;

 public:
  BFloat16* residual;  // [rows, width]
  BFloat16* normal;    // [rows, width]
  BFloat16* wide;      // [rows, width]
  BFloat16* mixed;     // [rows, width]
  float* logits;       // [logit_rows, vocab]
};

}  // namespace selfsame::bench
