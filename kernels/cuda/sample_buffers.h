#pragma once

// What sampling takes and gives, on both sides of the bus: page-locked and device buffers,
// allocated once.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pass_graphs.h"
#include "kernels/ops.h"

namespace selfsame::cuda {

class SampleBuffers {
 public:
  static absl::StatusOr<SampleBuffers> Create(int32_t max_rows);

  // Starts copying the parameters of a call whose results are for `out`, and gives the op: `rows`
  // rows, those past the parameters' greedy. The previous call's copies must be done.
  absl::StatusOr<SampleOp> Begin(const float* logits, int32_t vocab,
                                 std::span<const SampleRow> params, int32_t rows,
                                 std::span<SampledToken> out, cudaStream_t stream);
  // Starts copying the op's results to the host; it must be enqueued.
  absl::Status CopyBack(cudaStream_t stream);
  // Writes the results to where they were asked for. REQUIRES: CopyBack's copies are done.
  void Deliver();
  // Forgets the call.
  void Drop() { out_ = {}; }

  bool is_pending() const { return !out_.empty(); }

 private:
  SampleBuffers() = default;

  PinnedMemory host_params_;
  PinnedMemory host_sampled_;
  PinnedMemory host_top_;  // [max_rows, kMaxTopLogprobs]
  Memory params_;
  Memory sampled_;
  Memory top_;
  std::span<SampledToken> out_;
  int32_t vocab_ = 0;
};

}  // namespace selfsame::cuda
