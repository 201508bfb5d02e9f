#include "kernels/cuda/pass_graphs.h"

#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "kernels/cuda/attention_work.h"

namespace selfsame::cuda {
namespace {

constexpr size_t kMaxEntries = 96;
// Up to here rows are nearly free, as a product then takes the time of reading its weights.
constexpr int32_t kCheapRows = 256;
constexpr int32_t kLargeStep = 64;

absl::Status EnqueueAll(const std::vector<PassOp>& ops, GemmPlans& plans, cudaStream_t stream) {
  for (const PassOp& op : ops) RETURN_IF_ERROR(Enqueue(op, plans, stream));
  return absl::OkStatus();
}

class Enqueuer {
 public:
  Enqueuer(GemmPlans& plans, cudaStream_t stream) : plans_(plans), stream_(stream) {}

  absl::Status operator()(const GatherRowsOp& op) const {
    return ToStatus(RunGatherRows(op.table, op.indices, op.rows, op.width, op.out, stream_),
                    "gathering rows");
  }
  absl::Status operator()(const GemmOp& op) const {
    return plans_.Run(op.shape, op.rows, op.operands);
  }
  absl::Status operator()(const GemmNormOp& op) const {
    RmsNormArgs norm = op.norm;
    ASSIGN_OR_RETURN(norm.product,
                     plans_.RunUnsummed(op.gemm.shape, op.gemm.rows, op.gemm.operands));
    return (*this)(norm);
  }
  absl::Status operator()(const RmsNormArgs& args) const {
    return ToStatus(RunRmsNorm(args, stream_), "RMS norm");
  }
  absl::Status operator()(const RopeArgs& args) const {
    return ToStatus(RunRopeAndStoreKv(args, stream_), "RoPE");
  }
  absl::Status operator()(const AttentionArgs& args) const {
    return ToStatus(RunAttention(args, stream_), "attention");
  }
  absl::Status operator()(const SiluMulOp& op) const {
    return ToStatus(RunSiluMul(op.gate_up, op.rows, op.width, op.out, stream_), "SiLU");
  }
  absl::Status operator()(const SampleCall& call) const {
    return ToStatus(RunSample(call, stream_), "sampling");
  }

 private:
  GemmPlans& plans_;
  cudaStream_t stream_;
};

}  // namespace

absl::Status Enqueue(const PassOp& op, GemmPlans& plans, cudaStream_t stream) {
  return std::visit(Enqueuer(plans, stream), op);
}

int32_t RoundedRows(int32_t rows, int32_t max_rows) {
  const int32_t rounded =
      rows <= kCheapRows ? RoundedCount(rows) : (rows + kLargeStep - 1) / kLargeStep * kLargeStep;
  return std::min(rounded, max_rows);
}

PassGraphs::~PassGraphs() { Clear(); }

void PassGraphs::Clear() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) static_cast<void>(cudaGraphExecDestroy(entry.graph));
  }
  entries_.clear();
}

absl::Status PassGraphs::Run(const std::vector<PassOp>& ops, GemmPlans& plans,
                             cudaStream_t stream) {
  ++use_count_;
  Entry* entry = Find(ops);
  if (entry == nullptr) {
    Add(ops);
    return EnqueueAll(ops, plans, stream);
  }
  entry->last_use = use_count_;
  if (entry->graph == nullptr && !entry->has_failed) {
    RETURN_IF_ERROR(Capture(*entry, plans, stream));
  }
  if (entry->graph == nullptr) return EnqueueAll(ops, plans, stream);
  ++replay_count_;
  return ToStatus(cudaGraphLaunch(entry->graph, stream), "launching a graph");
}

PassGraphs::Entry* PassGraphs::Find(const std::vector<PassOp>& ops) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&ops](const Entry& entry) { return entry.ops == ops; });
  return found == entries_.end() ? nullptr : &*found;
}

void PassGraphs::Add(const std::vector<PassOp>& ops) {
  if (entries_.size() < kMaxEntries) {
    entries_.push_back({.ops = ops, .last_use = use_count_});
    return;
  }
  Entry& oldest =
      *std::min_element(entries_.begin(), entries_.end(),
                        [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
  if (oldest.graph != nullptr) static_cast<void>(cudaGraphExecDestroy(oldest.graph));
  oldest.graph = nullptr;
  oldest.has_failed = false;
  oldest.ops = ops;
  oldest.last_use = use_count_;
}

// An op that cannot be captured leaves the entry without a graph; that is no error.
absl::Status PassGraphs::Capture(Entry& entry, GemmPlans& plans, cudaStream_t stream) {
  RETURN_IF_ERROR(ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                           "beginning a graph"));
  const absl::Status enqueued = EnqueueAll(entry.ops, plans, stream);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (!enqueued.ok() || ended != cudaSuccess ||
      cudaGraphInstantiate(&entry.graph, graph, 0) != cudaSuccess) {
    entry.graph = nullptr;
    entry.has_failed = true;
    static_cast<void>(cudaGetLastError());
  }
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  return absl::OkStatus();
}

}  // namespace selfsame::cuda
