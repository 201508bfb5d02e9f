#include "kernels/cuda/sample_buffers.h"

#include <algorithm>
#include <cstring>

#include "common/errors.h"
#include "common/limits.h"

namespace selfsame::cuda {

absl::StatusOr<SampleBuffers> SampleBuffers::Create(int32_t max_rows) {
  SampleBuffers buffers;
  const auto rows = static_cast<size_t>(max_rows);
  const size_t top_bytes = rows * kMaxTopLogprobs * sizeof(TokenLogprob);
  ASSIGN_OR_RETURN(buffers.host_params_, PinnedMemory::Create(rows * sizeof(SampleRow)));
  ASSIGN_OR_RETURN(buffers.host_sampled_, PinnedMemory::Create(rows * sizeof(TokenLogprob)));
  ASSIGN_OR_RETURN(buffers.host_top_, PinnedMemory::Create(top_bytes));
  ASSIGN_OR_RETURN(buffers.params_, Memory::Create(rows * sizeof(SampleRow)));
  ASSIGN_OR_RETURN(buffers.sampled_, Memory::Create(rows * sizeof(TokenLogprob)));
  ASSIGN_OR_RETURN(buffers.top_, Memory::Create(top_bytes));
  return buffers;
}

absl::StatusOr<SampleOp> SampleBuffers::Begin(const float* logits, int32_t vocab,
                                              std::span<const SampleRow> params, int32_t rows,
                                              std::span<SampledToken> out, cudaStream_t stream) {
  auto* host_params = host_params_.data<SampleRow>();
  std::copy(params.begin(), params.end(), host_params);
  std::fill(host_params + params.size(), host_params + rows, SampleRow{});
  RETURN_IF_ERROR(ToStatus(
      cudaMemcpyAsync(params_.data(), host_params, static_cast<size_t>(rows) * sizeof(SampleRow),
                      cudaMemcpyHostToDevice, stream),
      "copying sampling parameters"));
  out_ = out;
  vocab_ = vocab;
  return SampleOp{.logits = logits,
                  .vocab = vocab,
                  .params = params_.data<SampleRow>(),
                  .rows = rows,
                  .out = sampled_.data<TokenLogprob>(),
                  .top = top_.data<TokenLogprob>()};
}

absl::Status SampleBuffers::CopyBack(cudaStream_t stream) {
  const size_t count = out_.size();
  RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(host_sampled_.data(), sampled_.data(), count * sizeof(TokenLogprob),
                               cudaMemcpyDeviceToHost, stream),
               "copying sampled tokens"));
  const auto* params = host_params_.data<SampleRow>();
  if (std::none_of(params, params + count,
                   [](const SampleRow& row) { return row.top_count > 0; })) {
    return absl::OkStatus();
  }
  return ToStatus(
      cudaMemcpyAsync(host_top_.data(), top_.data(), count * kMaxTopLogprobs * sizeof(TokenLogprob),
                      cudaMemcpyDeviceToHost, stream),
      "copying top logprobs");
}

void SampleBuffers::Deliver() {
  const auto* params = host_params_.data<SampleRow>();
  const auto* sampled = host_sampled_.data<TokenLogprob>();
  const auto* top = host_top_.data<TokenLogprob>();
  for (size_t i = 0; i < out_.size(); ++i) {
    const TokenLogprob* row_top = top + i * kMaxTopLogprobs;
    out_[i] = {.token_id = sampled[i].token_id,
               .logprob = sampled[i].logprob,
               .top = TopLogprobs(row_top, row_top + std::min(params[i].top_count, vocab_))};
  }
  out_ = {};
}

}  // namespace selfsame::cuda
