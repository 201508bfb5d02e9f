#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame {

inline constexpr int64_t kMinTableEntries = int64_t{1} << 18;  // 1 MiB, 4 million positions
inline constexpr int64_t kMaxTableEntries = int64_t{1} << 30;

struct CudaOptions {
  Schedule schedule = Schedule::kFast;
  int device = 0;  // CUDA ordinal
  // Most rows and logit rows of a pass. Under the canonical schedule a matrix product runs at the
  // next larger rung, so every activation buffer given to an op must have room for `max_rows` rows
  // (x and y of Logits: `max_logit_rows`), however few the pass has; what the rows past the pass
  // hold does not matter, and they are overwritten.
  int32_t max_rows = 512;
  int32_t max_logit_rows = 512;
  // Most entries of a pass's block tables together: sequences times blocks of the longest one. They
  // take 4 bytes each of device memory and as much of page-locked host memory. There is room for
  // kMinTableEntries however few are asked for.
  int64_t max_table_entries = kMinTableEntries;
  // Of every Attention to come, where the caller knows it: a shape that no kernel takes is refused
  // here, and the first pass waits for nothing.
  std::optional<AttentionShape> attention_shape = {};
  // Fast schedule: a plan of the canonical reduction class is taken when it is at most this much
  // slower than the best, since equal bits save rollbacks.
  double class_slack = 0.03;
  // Passes that come again are replayed as CUDA graphs, with row counts rounded up so that few
  // differ: buffers then need room for `max_rows` rows under the fast schedule too.
  bool use_graphs = false;
  // Where the device has warpgroup products (compute capability 9.0), attention takes them; false:
  // it runs as on older devices, to the same bits.
  bool use_warpgroups = true;
  // Where measured GEMM plans are kept between runs; empty: nowhere.
  std::string plan_file = {};
};

// Ops on one NVIDIA GPU of compute capability 8.0 or higher. All work is enqueued on one stream,
// from buffers that are allocated here and whose addresses never change (README.md, life of a
// pass).
//
// The ops of a pass are gathered, begin to run at EndPass, and are waited for there. Sooner the
// device is waited for by CopyToDevice and CopyToHost, by an Attention of another shape than the
// last one or `attention_shape`, which also allocates, and by a Sample whose rows have more than
// 2^20 edits together. Two more things may take time and device memory: the first Gemm or Logits of
// a shape measures its plans, for up to seconds, and a pass that comes the second time becomes a
// graph, in milliseconds. So passes as they will be should run before serving. Results of Sample
// are valid after EndPass, or, without an open pass, at once. Device errors are kept and returned
// by the next EndPass, and by all that follow.
//
// FAILED_PRECONDITION without a usable device, or for an attention shape that has no kernel;
// INVALID_ARGUMENT for limits out of range; RESOURCE_EXHAUSTED without memory for the working
// buffers.
absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(const CudaOptions& options);

}  // namespace selfsame
