#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_info.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/pass_buffers.h"
#include "kernels/cuda/pass_graphs.h"
#include "kernels/cuda/sample_buffers.h"
#include "kernels/cuda/weights.h"

namespace selfsame {
namespace cuda {
namespace {

// Changes whenever a kernel's bits may change.
constexpr int kArithmeticVersion = 4;
// Larger passes are rarely of single rows.
constexpr int32_t kMaxWarmUpRows = 128;
// Rows × splits of a pass whose attention may be spread over several blocks, at most: a window of
// 64 rows at 128k positions. With 32 heads of 128 their outputs take 272 MB.
constexpr int32_t kMaxPartialRows = 16384;

class CudaBuffer final : public DeviceBuffer {
 public:
  explicit CudaBuffer(Memory memory) : memory_(std::move(memory)) {
    data_ = memory_.data();
    size_bytes_ = memory_.size_bytes();
  }

 private:
  Memory memory_;
};

absl::StatusOr<int32_t> TileQueries(const CudaOptions& options) {
  bool has_warpgroups = false;
  RETURN_IF_ERROR(ToStatus(HasWarpgroupAttention(has_warpgroups), "probing the device"));
  return options.use_warpgroups && has_warpgroups ? kWarpgroupTileQueries : kAttentionTileQueries;
}

absl::Status ShapeError(const AttentionShape& shape) {
  return FailedPreconditionError(
      absl::StrCat("the CUDA backend takes models with heads of 64 or 128 dimensions and at most ",
                   kAttentionTileQueries, " query heads for a key head, not ", shape.head_dim,
                   " and ", shape.head_count / shape.kv_head_count));
}

absl::Status CheckOptions(const CudaOptions& options) {
  if (options.max_rows < 1 || options.max_logit_rows < 1) {
    return InvalidArgumentError("max_rows", "a pass needs at least one row and one logit row");
  }
  if (options.max_table_entries > kMaxTableEntries) {
    return InvalidArgumentError(
        "max_table_entries",
        absl::StrCat("the block tables of a pass have up to ", options.max_table_entries,
                     " entries; the limit is ", kMaxTableEntries,
                     ": fewer or shorter sequences are needed"));
  }
  if (options.attention_shape.has_value() && !TakesAttention(*options.attention_shape)) {
    return ShapeError(*options.attention_shape);
  }
  return absl::OkStatus();
}

class CudaOps final : public Ops {
 public:
  CudaOps(const CudaOptions& options, DeviceInfo device, Stream stream, GemmPlans plans,
          PassBuffers pass_buffers, SampleBuffers sample_buffers)
      : options_(options),
        device_(std::move(device)),
        stream_(std::move(stream)),
        plans_(std::move(plans)),
        pass_buffers_(std::move(pass_buffers)),
        sample_buffers_(std::move(sample_buffers)) {}

  // The shape whose work the next passes are cut into. REQUIRES: the kernels take it; nothing is
  // under way that uses the partials of another.
  absl::Status SetShape(const AttentionShape& shape) {
    ASSIGN_OR_RETURN(partials_, Memory::Create(size_t{kMaxPartialRows} * sizeof(float) *
                                               static_cast<size_t>(shape.output_width() +
                                                                   2 * shape.head_count)));
    shape_ = shape;
    return absl::OkStatus();
  }

  ~CudaOps() override { static_cast<void>(cudaStreamSynchronize(stream_.get())); }

  Schedule schedule() const override { return options_.schedule; }

  std::string ArithmeticId() const override {
    return absl::StrCat("cuda-", kArithmeticVersion, " ", device_.Scope());
  }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t size_bytes) override {
    UseDevice();
    ASSIGN_OR_RETURN(Memory memory, Memory::Create(size_bytes));
    RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(memory.data(), 0, size_bytes, stream_.get()),
                             "zeroing device memory"));
    RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream_.get()), "zeroing device memory"));
    return std::unique_ptr<DeviceBuffer>(new CudaBuffer(std::move(memory)));
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackMatrix(
      std::span<const MatrixPart> parts) override {
    UseDevice();
    return UploadMatrix(parts, stream_.get());
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> GenerateMatrix(
      std::span<const SyntheticPart> parts) override {
    UseDevice();
    return MakeMatrix(parts, stream_.get());
  }

  void CopyToDevice(void* to_device, const void* from_host, size_t size_bytes) override {
    Flush();
    Note(cudaMemcpyAsync(to_device, from_host, size_bytes, cudaMemcpyHostToDevice, stream_.get()),
         "copying to the device");
    Wait();
  }

  void CopyToHost(void* to_host, const void* from_device, size_t size_bytes) override {
    Flush();
    Note(cudaMemcpyAsync(to_host, from_device, size_bytes, cudaMemcpyDeviceToHost, stream_.get()),
         "copying to the host");
    Wait();
  }

  int32_t runs_to_settle() const override {
    return options_.use_graphs ? PassGraphs::kRunsToSettle : 1;
  }

  uint64_t replay_count() const override { return graphs_.replay_count(); }

  void ForgetPasses() override {
    SELFSAME_CHECK(!pass_.has_value());
    UseDevice();
    graphs_.Clear();
  }

  std::vector<int32_t> WarmUpRowCounts(int32_t max_rows) const override {
    std::vector<int32_t> counts;
    for (int32_t rows = 1; rows <= std::min(max_rows, kMaxWarmUpRows); ++rows) {
      const int32_t rounded = RoundedRows(rows, max_rows);
      if (counts.empty() || rounded > counts.back()) counts.push_back(rounded);
    }
    return counts;
  }

  void BeginPass(const Pass& pass) override {
    SELFSAME_CHECK(!pass_.has_value());
    SELFSAME_CHECK(pass.row_count <= options_.max_rows &&
                   static_cast<int32_t>(pass.logit_rows.size()) <= options_.max_logit_rows);
    UseDevice();
    pass_ = pass;
    UploadPass();
  }

  absl::Status EndPass() override {
    SELFSAME_CHECK(pass_.has_value());
    Flush();
    Wait();
    pass_.reset();
    DeliverSamples();
    return status_;
  }

  void Embed(const PackedMatrix& table, BFloat16* out) override {
    Do(GatherRowsOp{.table = Weights(table),
                    .indices = view().token_ids,
                    .rows = view().row_count,
                    .width = static_cast<int32_t>(table.k()),
                    .out = out});
  }

  void RmsNorm(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t rows,
               int32_t width, BFloat16* out) override {
    AddRmsNorm(nullptr, x, weight, epsilon, rows, width, out);
  }

  void AddRmsNorm(BFloat16* residual, const BFloat16* x, const BFloat16* weight, float epsilon,
                  int32_t rows, int32_t width, BFloat16* out) override {
    const RmsNormArgs norm = {.x = x,
                              .product = {},
                              .residual = residual,
                              .weight = weight,
                              .out = out,
                              .epsilon = epsilon,
                              .rows = RowsToRun(rows),
                              .width = width};
    if (!JoinProduct(norm)) Do(norm);
  }

  void Gemm(const BFloat16* x, int32_t rows, const PackedMatrix& w, const BFloat16* bias,
            BFloat16* y) override {
    Multiply(GemmOutput::kBFloat16, x, RowsToRun(rows), w, bias, y);
  }

  void Logits(const BFloat16* x, int32_t rows, const PackedMatrix& w, float* y) override {
    Multiply(GemmOutput::kFloat, x, LogitRowsToRun(rows), w, nullptr, y);
  }

  void GatherLogitRows(const BFloat16* x, int32_t width, BFloat16* out) override {
    if (view().logit_row_count == 0) return;
    Do(GatherRowsOp{.table = x,
                    .indices = view().logit_rows,
                    .rows = view().logit_row_count,
                    .width = width,
                    .out = out});
  }

  void RopeAndStoreKv(const AttentionShape& shape, const QkNorm* norm, const RopeTable& rope,
                      BFloat16* qkv, KvLayer kv) override {
    SELFSAME_CHECK(shape.head_dim % 16 == 0);
    if (norm != nullptr && !TakesQkNorm(shape)) return Note(ShapeError(shape));
    Do(RopeArgs{.shape = shape,
                .norm = norm != nullptr ? *norm : QkNorm{},
                .table = rope,
                .positions = view().positions,
                .kv_slots = view().kv_slots,
                .qkv = qkv,
                .kv = kv.data,
                .rows = view().row_count});
  }

  void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                 BFloat16* out) override {
    PrepareShape(shape);
    if (!status_.ok()) return;
    const AttentionWork& work = pass_buffers_.work();
    auto* partials = partials_.data<float>();
    Do(AttentionArgs{.shape = shape,
                     .tile_queries = work.tile_queries,
                     .split_keys = work.split_keys,
                     .counts = work.counts,
                     .merge_count = static_cast<int32_t>(work.merges.size()),
                     .items = view().items,
                     .merges = view().merges,
                     .block_tables = view().block_tables,
                     .qkv = qkv,
                     .kv = kv.data,
                     .out = out,
                     .partial_output = partials,
                     .partial_state = partials + int64_t{kMaxPartialRows} * shape.output_width()});
  }

  void SiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out) override {
    Do(SiluMulOp{.gate_up = gate_up, .rows = RowsToRun(rows), .width = width, .out = out});
  }

  void ReduceRanks(BFloat16*, int64_t) override {}

  void Sample(const float* logits, int32_t vocab, std::span<const SampleRow> params,
              std::span<SampledToken> out) override {
    SELFSAME_CHECK(params.size() == out.size() &&
                   static_cast<int32_t>(params.size()) <= options_.max_logit_rows);
    // One run, unless the rows have more edits than the buffers hold.
    for (size_t done = 0; done < params.size();) {
      const auto left = params.subspan(done);
      const size_t count = SampleBuffers::CountFitting(left);
      SampleRun(logits + static_cast<int64_t>(done) * vocab, vocab, left.first(count),
                out.subspan(done, count));
      done += count;
    }
  }

 private:
  const PassView& view() const {
    SELFSAME_CHECK(pass_.has_value());
    return pass_buffers_.view();
  }

  // The current device belongs to the thread, and the caller's may be a new one.
  void UseDevice() { Note(cudaSetDevice(options_.device), "selecting the device"); }

  // Keeps the first error; it is what the next EndPass returns.
  void Note(const absl::Status& status) { status_.Update(status); }
  void Note(cudaError_t error, const char* what) {
    if (error != cudaSuccess) [[unlikely]]
      Note(ToStatus(error, what));
  }
  void Wait() { Note(cudaStreamSynchronize(stream_.get()), "waiting for the device"); }

  // Ops of a pass are gathered, so that a pass that came before can be replayed as a graph; others
  // are enqueued at once.
  void Do(const PassOp& op) {
    if (pass_.has_value()) {
      ops_.push_back(op);
    } else if (status_.ok()) {
      Note(Enqueue(op, plans_, stream_.get()));
    }
  }

  // Makes one op of a norm and the product before it, if that is its input, which the norm uses up.
  bool JoinProduct(const RmsNormArgs& norm) {
    auto* product = ops_.empty() ? nullptr : std::get_if<GemmOp>(&ops_.back());
    const bool is_input = product != nullptr && product->operands.y == norm.x &&
                          product->rows == norm.rows && product->shape.n == norm.width &&
                          product->shape.output == GemmOutput::kBFloat16;
    if (!is_input || !TakesProduct(norm)) return false;
    ops_.back() = GemmNormOp{.gemm = *product, .norm = norm};
    return true;
  }

  // Enqueues what the pass has gathered, and the copy of what it sampled.
  void Flush() {
    if (!ops_.empty() && status_.ok()) {
      if (options_.use_graphs) {
        Note(graphs_.Run(ops_, plans_, stream_.get()));
      } else {
        for (const PassOp& op : ops_) Note(Enqueue(op, plans_, stream_.get()));
      }
    }
    ops_.clear();
    if (!pending_samples_.empty()) Note(sample_buffers_.Download(stream_.get()));
  }

  // With graphs, passes run with rounded row counts, so that there are few different ones.
  void UploadPass() {
    const auto rounded = [this](int32_t rows, int32_t max_rows) {
      return options_.use_graphs ? RoundedRows(rows, max_rows) : rows;
    };
    Note(pass_buffers_.Upload(
        *pass_, rounded(pass_->row_count, options_.max_rows),
        rounded(static_cast<int32_t>(pass_->logit_rows.size()), options_.max_logit_rows),
        shape_.has_value() ? &*shape_ : nullptr, stream_.get()));
  }
  int32_t RowsToRun(int32_t rows) const {
    return pass_.has_value() && rows == pass_->row_count ? view().row_count : rows;
  }
  int32_t LogitRowsToRun(int32_t rows) const {
    const bool is_whole =
        pass_.has_value() && rows == static_cast<int32_t>(pass_->logit_rows.size());
    return is_whole ? view().logit_row_count : rows;
  }

  // `params` fit into the buffers. The results come later, at the end of the pass if there is one.
  void SampleRun(const float* logits, int32_t vocab, std::span<const SampleRow> params,
                 std::span<SampledToken> out) {
    if (!pending_samples_.empty()) {
      Flush();
      Wait();
      DeliverSamples();
    }
    const int32_t rows = LogitRowsToRun(static_cast<int32_t>(params.size()));
    Note(sample_buffers_.Upload(params, rows, vocab, stream_.get()));
    if (!status_.ok()) return;
    Do(sample_buffers_.CallOn(logits));
    pending_samples_ = out;
    if (pass_.has_value()) return;
    Note(sample_buffers_.Download(stream_.get()));
    Wait();
    DeliverSamples();
  }

  void DeliverSamples() {
    if (!pending_samples_.empty() && status_.ok()) sample_buffers_.Deliver(pending_samples_);
    pending_samples_ = {};
  }

  void Multiply(GemmOutput output, const BFloat16* x, int32_t rows, const PackedMatrix& w,
                const BFloat16* bias, void* y) {
    if (rows == 0 || !status_.ok()) return;
    Do(GemmOp{.shape = {.n = w.n(), .k = w.k(), .output = output, .has_bias = bias != nullptr},
              .rows = rows,
              .operands = {.x = x, .w = Weights(w), .bias = bias, .y = y}});
  }

  // An attention of another shape than the last: what the pass has so far is run first, since its
  // graph must not hold what changes here.
  void PrepareShape(const AttentionShape& shape) {
    if (shape_ == shape) return;
    if (!TakesAttention(shape)) return Note(ShapeError(shape));
    Flush();
    Wait();
    Note(SetShape(shape));
    if (status_.ok()) UploadPass();
  }

  const CudaOptions options_;
  const DeviceInfo device_;
  Stream stream_;
  GemmPlans plans_;
  PassBuffers pass_buffers_;
  SampleBuffers sample_buffers_;
  PassGraphs graphs_;
  std::vector<PassOp> ops_;  // of the open pass, not yet enqueued
  Memory partials_;          // output [kMaxPartialRows, heads, head_dim], then state [.., heads, 2]
  std::optional<Pass> pass_;
  std::optional<AttentionShape> shape_;
  std::span<SampledToken> pending_samples_;
  absl::Status status_;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(const CudaOptions& options) {
  RETURN_IF_ERROR(cuda::CheckOptions(options));
  ASSIGN_OR_RETURN(cuda::DeviceInfo device, cuda::OpenDevice(options.device));
  ASSIGN_OR_RETURN(const int32_t tile_queries, cuda::TileQueries(options));
  RETURN_IF_ERROR(cuda::ToStatus(cuda::PrepareAttention(tile_queries), "preparing kernels"));
  ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create());
  ASSIGN_OR_RETURN(cuda::GemmLauncher launcher, cuda::GemmLauncher::Create(stream.get()));
  const cuda::AttentionLimits limits = {.schedule = options.schedule,
                                        .processor_count = device.processor_count,
                                        .tile_queries = tile_queries,
                                        .max_partial_rows = cuda::kMaxPartialRows};
  ASSIGN_OR_RETURN(
      cuda::PassBuffers pass_buffers,
      cuda::PassBuffers::Create(options.max_rows, options.max_logit_rows,
                                std::max(options.max_table_entries, kMinTableEntries), limits));
  cuda::GemmPlans plans(std::move(launcher), {.schedule = options.schedule,
                                              .class_slack = options.class_slack,
                                              .max_rows = options.max_rows,
                                              .max_logit_rows = options.max_logit_rows,
                                              .plan_file = options.plan_file,
                                              .scope = device.Scope()});
  ASSIGN_OR_RETURN(cuda::SampleBuffers sample_buffers,
                   cuda::SampleBuffers::Create(options.max_logit_rows));
  auto ops = std::make_unique<cuda::CudaOps>(options, std::move(device), std::move(stream),
                                             std::move(plans), std::move(pass_buffers),
                                             std::move(sample_buffers));
  if (options.attention_shape.has_value()) {
    RETURN_IF_ERROR(ops->SetShape(*options.attention_shape));
  }
  return absl::StatusOr<std::unique_ptr<Ops>>(std::move(ops));
}

}  // namespace selfsame
