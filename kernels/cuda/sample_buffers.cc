#include "kernels/cuda/sample_buffers.h"

#include <algorithm>

#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/token_logprob.h"

namespace selfsame::cuda {

absl::StatusOr<SampleBuffers> SampleBuffers::Create(int32_t max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  SampleBuffers buffers;
  ASSIGN_OR_RETURN(buffers.rows_host_, PinnedMemory::Create(rows * sizeof(DeviceSampleRow)));
  ASSIGN_OR_RETURN(buffers.tokens_host_, PinnedMemory::Create(rows * sizeof(TokenLogprob)));
  ASSIGN_OR_RETURN(buffers.rows_, Memory::Create(rows * sizeof(DeviceSampleRow)));
  ASSIGN_OR_RETURN(buffers.tokens_, Memory::Create(rows * sizeof(TokenLogprob)));
  const size_t top_bytes = rows * kMaxTopLogprobs * sizeof(TokenLogprob);
  ASSIGN_OR_RETURN(buffers.top_host_, PinnedMemory::Create(top_bytes));
  ASSIGN_OR_RETURN(buffers.top_, Memory::Create(top_bytes));
  ASSIGN_OR_RETURN(buffers.edits_host_, PinnedMemory::Create(kMaxEdits * sizeof(LogitEdit)));
  ASSIGN_OR_RETURN(buffers.edits_, Memory::Create(kMaxEdits * sizeof(LogitEdit)));
  ASSIGN_OR_RETURN(buffers.raw_logits_, Memory::Create(kMaxEdits * sizeof(float)));
  ASSIGN_OR_RETURN(buffers.slices_, Memory::Create(rows * kMaxSlices * sizeof(SliceSum)));
  return buffers;
}

size_t SampleBuffers::CountFitting(std::span<const SampleRow> rows) {
  size_t edit_count = 0;
  size_t count = 0;
  for (; count < rows.size(); ++count) {
    edit_count += rows[count].edits.size();
    if (edit_count > kMaxEdits) break;
  }
  SELFSAME_CHECK(count > 0 || rows.empty());
  return count;
}

absl::Status SampleBuffers::Upload(std::span<const SampleRow> rows, int32_t run_row_count,
                                   int32_t vocab, cudaStream_t stream) {
  SELFSAME_CHECK(vocab <= kMaxVocab && CountFitting(rows) == rows.size());
  row_count_ = static_cast<int32_t>(rows.size());
  run_row_count_ = run_row_count;
  vocab_ = vocab;
  has_top_ = false;
  auto* const to_row = rows_host_.data<DeviceSampleRow>();
  auto* const to_edit = edits_host_.data<LogitEdit>();
  size_t first_edit = 0;  // of the next row, among those of all
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& row = rows[i];
    to_row[i] = {.temperature = row.temperature,
                 .top_k = row.top_k,
                 .top_p = row.top_p,
                 .min_p = row.min_p,
                 .seed = row.seed,
                 .choice_index = row.choice_index,
                 .position = row.position,
                 .given_token = row.given_token,
                 .top_count = row.top_count,
                 .first_edit = static_cast<int32_t>(first_edit),
                 .edit_count = static_cast<int32_t>(row.edits.size())};
    has_top_ = has_top_ || row.top_count > 0;
    for (const LogitEdit& edit : row.edits) {
      SELFSAME_CHECK(edit.token_id >= 0 && edit.token_id < vocab);
      to_edit[first_edit++] = edit;
    }
  }
  std::fill(to_row + row_count_, to_row + run_row_count_, DeviceSampleRow{});
  RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(rows_.data(), to_row,
                               static_cast<size_t>(run_row_count_) * sizeof(DeviceSampleRow),
                               cudaMemcpyHostToDevice, stream),
               "copying sampling parameters"));
  if (first_edit == 0) return absl::OkStatus();
  return ToStatus(cudaMemcpyAsync(edits_.data(), edits_host_.data(), first_edit * sizeof(LogitEdit),
                                  cudaMemcpyHostToDevice, stream),
                  "copying logit edits");
}

SampleCall SampleBuffers::CallOn(const float* logits) const {
  return {.logits = logits,
          .vocab = vocab_,
          .params = rows_.data<DeviceSampleRow>(),
          .rows = run_row_count_,
          .edits = edits_.data<LogitEdit>(),
          .raw_logits = raw_logits_.data<float>(),
          .slices = slices_.data<SliceSum>(),
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
  const auto* const rows = rows_host_.data<DeviceSampleRow>();
  const auto* const tokens = tokens_host_.data<TokenLogprob>();
  for (size_t i = 0; i < out.size(); ++i) {
    const auto* const top = top_host_.data<TokenLogprob>() + i * kMaxTopLogprobs;
    out[i] = {.token_id = tokens[i].token_id,
              .logprob = tokens[i].logprob,
              .top = TopLogprobs(top, top + std::min(rows[i].top_count, vocab_))};
  }
}

}  // namespace selfsame::cuda
