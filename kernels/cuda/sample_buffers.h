#pragma once

// What sampling reads and writes, on both sides of the copy.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/sampling.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

class SampleBuffers {
 public:
  // Of the rows of one Upload.
  static constexpr size_t kMaxEdits = kMaxVocab;

  // Everything is allocated here: 36 MiB for kMaxEdits, and about 8.5 KiB a row.
  static absl::StatusOr<SampleBuffers> Create(int32_t max_rows);

  // How many of the first rows have at most kMaxEdits edits together. At least one: a row's edits
  // are of distinct tokens.
  static size_t CountFitting(std::span<const SampleRow> rows);

  // Starts copying the parameters and edits of `rows`, which must fit; greedy ones follow up to
  // `run_row_count` rows, at most max_rows. The previous copies must be done.
  absl::Status Upload(std::span<const SampleRow> rows, int32_t run_row_count, int32_t vocab,
                      cudaStream_t stream);
  // The launch over what was uploaded last.
  SampleCall CallOn(const float* logits) const;
  // Starts copying the results back.
  absl::Status Download(cudaStream_t stream) const;
  // The results. REQUIRES: the stream has come past Download; out: [rows uploaded last].
  void Deliver(std::span<SampledToken> out) const;

 private:
  PinnedMemory rows_host_;
  PinnedMemory edits_host_;
  PinnedMemory tokens_host_;
  PinnedMemory top_host_;  // [max_rows, kMaxTopLogprobs]
  Memory rows_;
  Memory edits_;
  Memory raw_logits_;
  Memory slices_;  // [max_rows, kMaxSlices]
  Memory tokens_;
  Memory top_;
  int32_t row_count_ = 0;
  int32_t run_row_count_ = 0;
  int32_t vocab_ = 0;
  bool has_top_ = false;  // of what was uploaded last, some row asks for its most likely tokens
};

}  // namespace selfsame::cuda
