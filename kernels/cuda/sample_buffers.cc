#include "kernels/cuda/sample_buffers.h"

#include <algorithm>

#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"

namespace selfsame::cuda {

absl::StatusOr<SampleBuffers> SampleBuffers::Create(int32_t max_rows) {
  SampleBuffers buffers;
  const auto rows = static_cast<size_t>(max_rows);
  const size_t top_bytes = rows * kMaxTopLogprobs * sizeof(TokenLogprob);
  ASSIGN_OR_RETURN(buffers.rows_host_, PinnedMemory::Create(rows * sizeof(SampleRow)));
  ASSIGN_OR_RETURN(buffers.tokens_host_, PinnedMemory::Create(rows * sizeof(TokenLogprob)));
  ASSIGN_OR_RETURN(buffers.top_host_, PinnedMemory::Create(top_bytes));
  ASSIGN_OR_RETURN(buffers.rows_, Memory::Create(rows * sizeof(SampleRow)));
  ASSIGN_OR_RETURN(buffers.tokens_, Memory::Create(rows * sizeof(TokenLogprob)));
  ASSIGN_OR_RETURN(buffers.top_, Memory::Create(top_bytes));
  return buffers;
}

absl::Status SampleBuffers::Upload(std::span<const SampleRow> rows, int32_t run_row_count,
                                   int32_t vocab, cudaStream_t stream) {
  row_count_ = static_cast<int32_t>(rows.size());
  run_row_count_ = run_row_count;
  vocab_ = vocab;
  has_top_ =
      std::any_of(rows.begin(), rows.end(), [](const SampleRow& row) { return row.top_count > 0; });
  auto* const host = rows_host_.data<SampleRow>();
  std::copy(rows.begin(), rows.end(), host);
  std::fill(host + row_count_, host + run_row_count_, SampleRow{});
  return ToStatus(
      cudaMemcpyAsync(rows_.data(), host, static_cast<size_t>(run_row_count_) * sizeof(SampleRow),
                      cudaMemcpyHostToDevice, stream),
      "copying sampling parameters");
}

SampleCall SampleBuffers::CallOn(const float* logits) const {
  return {.logits = logits,
          .vocab = vocab_,
          .params = rows_.data<SampleRow>(),
          .rows = run_row_count_,
          .out = tokens_.data<TokenLogprob>(),
          .top = top_.data<TokenLogprob>()};
}

absl::Status SampleBuffers::Download(cudaStream_t stream) const {
  const auto rows = static_cast<size_t>(row_count_);
  RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(tokens_host_.data(), tokens_.data(), rows * sizeof(TokenLogprob),
                               cudaMemcpyDeviceToHost, stream),
               "copying sampled tokens"));
  if (!has_top_) return absl::OkStatus();
  return ToStatus(
      cudaMemcpyAsync(top_host_.data(), top_.data(), rows * kMaxTopLogprobs * sizeof(TokenLogprob),
                      cudaMemcpyDeviceToHost, stream),
      "copying top logprobs");
}

void SampleBuffers::Deliver(std::span<SampledToken> out) const {
  SELFSAME_CHECK(out.size() == static_cast<size_t>(row_count_));
  const auto* const rows = rows_host_.data<SampleRow>();
  const auto* const tokens = tokens_host_.data<TokenLogprob>();
  for (size_t i = 0; i < out.size(); ++i) {
    const auto* const top = top_host_.data<TokenLogprob>() + i * kMaxTopLogprobs;
    out[i] = {.token_id = tokens[i].token_id,
              .logprob = tokens[i].logprob,
              .top = TopLogprobs(top, top + std::min(rows[i].top_count, vocab_))};
  }
}

}  // namespace selfsame::cuda
