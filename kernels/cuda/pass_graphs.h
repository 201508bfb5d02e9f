#pragma once

// A pass as a list of ops with all their arguments, and CUDA graphs of the lists that come again. A
// graph is replayed for a list that is equal in every argument, so it computes what the list would:
// what differs between passes of one shape is in the buffers the arguments point to.

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/sampling.h"

namespace selfsame::cuda {

struct GatherRowsOp {
  const BFloat16* table = nullptr;
  const int32_t* indices = nullptr;
  int32_t rows = 0;
  int32_t width = 0;
  BFloat16* out = nullptr;
  bool operator==(const GatherRowsOp&) const = default;
};
struct GemmOp {
  GemmShape shape;
  int32_t rows = 0;
  GemmOperands operands;
  bool operator==(const GemmOp&) const = default;
};
// A product and the norm that reads it, and nothing else does: the norm adds up what slices of k
// the product has.
struct GemmNormOp {
  GemmOp gemm;
  RmsNormArgs norm;
  bool operator==(const GemmNormOp&) const = default;
};
struct SiluMulOp {
  const BFloat16* gate_up = nullptr;
  int32_t rows = 0;
  int32_t width = 0;
  BFloat16* out = nullptr;
  bool operator==(const SiluMulOp&) const = default;
};
using PassOp = std::variant<GatherRowsOp, GemmOp, GemmNormOp, RmsNormArgs, RopeArgs, AttentionArgs,
                            SiluMulOp, SampleCall>;

// Enqueues one op.
absl::Status Enqueue(const PassOp& op, GemmPlans& plans, cudaStream_t stream);

// Rows that a pass of `rows` rows is run with, at most `max_rows`.
int32_t RoundedRows(int32_t rows, int32_t max_rows);

// One thread. A lost device shows in the next wait.
class PassGraphs {
 public:
  // The run from which on a list is a graph.
  static constexpr int32_t kRunsToSettle = 2;

  PassGraphs() = default;
  ~PassGraphs();
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;

  // Enqueues `ops` in order. A list is enqueued one by one the first time, when its products find
  // their plans; the second time it becomes a graph, which costs milliseconds; then that is
  // replayed. The lists used last are kept.
  absl::Status Run(const std::vector<PassOp>& ops, GemmPlans& plans, cudaStream_t stream);

  // Drops all lists and graphs; replay_count() stays. REQUIRES: the stream is idle.
  void Clear();

  // Lists that were run as graphs so far.
  uint64_t replay_count() const { return replay_count_; }

 private:
  struct Entry {
    std::vector<PassOp> ops;
    cudaGraphExec_t graph = nullptr;
    bool has_failed = false;  // cannot be captured
    uint64_t last_use = 0;
  };
  Entry* Find(const std::vector<PassOp>& ops);
  void Add(const std::vector<PassOp>& ops);
  static absl::Status Capture(Entry& entry, GemmPlans& plans, cudaStream_t stream);

  std::vector<Entry> entries_;
  uint64_t use_count_ = 0;
  uint64_t replay_count_ = 0;
};

}  // namespace selfsame::cuda
