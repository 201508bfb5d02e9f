#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/pass_buffers.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/weights.h"

namespace selfsame {
namespace cuda {
namespace {

// Changes whenever a kernel's bits may change.
constexpr int kArithmeticVersion = 1;
constexpr int kMinMajorCapability = 8;
// Rows × splits of a pass whose attention may be spread over several blocks, at most.
constexpr int32_t kMaxPartialRows = 4096;

class CudaBuffer final : public DeviceBuffer {
 public:
  explicit CudaBuffer(Memory memory) : memory_(std::move(memory)) {
    data_ = memory_.data();
    size_bytes_ = memory_.size_bytes();
  }

 private:
  Memory memory_;
};

struct Device {
  std::string name;
  int processor_count = 0;
  int capability = 0;  // 10 * major + minor
};

absl::StatusOr<Device> OpenDevice(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || index < 0 || index >= count) {
    return FailedPreconditionError(absl::StrCat("there is no CUDA device ", index, ": ",
                                                error != cudaSuccess
                                                    ? cudaGetErrorString(error)
                                                    : absl::StrCat(count, " visible").c_str()));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, index), "reading the device"));
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(index), "selecting the device"));
  if (properties.major < kMinMajorCapability) {
    return FailedPreconditionError(absl::StrCat("CUDA device ", index, ", ", properties.name,
                                                ", is older than compute capability 8.0"));
  }
  return Device{.name = properties.name,
                .processor_count = properties.multiProcessorCount,
                .capability = 10 * properties.major + properties.minor};
}

std::string ScopeOf(const Device& device) {
  int driver_runtime = 0;
  static_cast<void>(cudaRuntimeGetVersion(&driver_runtime));
  return absl::StrCat(device.name, " sm_", device.capability, " ", device.processor_count,
                      " processors, cublasLt ", cublasLtGetVersion(), ", cudart ", driver_runtime);
}

class CudaOps final : public Ops {
 public:
  CudaOps(const CudaOptions& options, Device device, Stream stream, GemmPlans plans,
          PassBuffers pass_buffers)
      : options_(options),
        device_(std::move(device)),
        stream_(std::move(stream)),
        plans_(std::move(plans)),
        pass_buffers_(std::move(pass_buffers)) {}

  ~CudaOps() override { static_cast<void>(cudaStreamSynchronize(stream_.get())); }

  absl::Status AllocateSampling() {
    const auto rows = static_cast<size_t>(options_.max_logit_rows);
    ASSIGN_OR_RETURN(sample_params_host_, PinnedMemory::Create(rows * sizeof(SampleRow)));
    ASSIGN_OR_RETURN(sampled_host_, PinnedMemory::Create(rows * sizeof(TokenLogprob)));
    ASSIGN_OR_RETURN(sample_params_, Memory::Create(rows * sizeof(SampleRow)));
    ASSIGN_OR_RETURN(sampled_, Memory::Create(rows * sizeof(TokenLogprob)));
    const size_t top_bytes = rows * kMaxTopLogprobs * sizeof(TokenLogprob);
    ASSIGN_OR_RETURN(top_host_, PinnedMemory::Create(top_bytes));
    ASSIGN_OR_RETURN(top_, Memory::Create(top_bytes));
    return absl::OkStatus();
  }

  Schedule schedule() const override { return options_.schedule; }

  std::string ArithmeticId() const override {
    return absl::StrCat("cuda-", kArithmeticVersion, " ", ScopeOf(device_));
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
    Note(cudaMemcpyAsync(to_device, from_host, size_bytes, cudaMemcpyHostToDevice, stream_.get()),
         "copying to the device");
    Wait();
  }

  void CopyToHost(void* to_host, const void* from_device, size_t size_bytes) override {
    Note(cudaMemcpyAsync(to_host, from_device, size_bytes, cudaMemcpyDeviceToHost, stream_.get()),
         "copying to the host");
    Wait();
  }

  void BeginPass(const Pass& pass) override {
    SELFSAME_CHECK(!pass_.has_value());
    SELFSAME_CHECK(pass.row_count <= options_.max_rows &&
                   static_cast<int32_t>(pass.logit_rows.size()) <= options_.max_logit_rows);
    UseDevice();
    pass_ = pass;
    Note(pass_buffers_.Upload(pass, shape_.has_value() ? &*shape_ : nullptr, stream_.get()));
  }

  absl::Status EndPass() override {
    SELFSAME_CHECK(pass_.has_value());
    Wait();
    pass_.reset();
    DeliverSamples();
    return status_;
  }

  void Embed(const PackedMatrix& table, BFloat16* out) override {
    Note(RunGatherRows(Weights(table), view().token_ids, view().row_count,
                       static_cast<int32_t>(table.k()), out, stream_.get()),
         "embedding");
  }

  void RmsNorm(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t rows,
               int32_t width, BFloat16* out) override {
    Note(RunRmsNorm({.x = x,
                     .weight = weight,
                     .out = out,
                     .epsilon = epsilon,
                     .rows = rows,
                     .width = width},
                    stream_.get()),
         "RMS norm");
  }

  void AddRmsNorm(BFloat16* residual, const BFloat16* x, const BFloat16* weight, float epsilon,
                  int32_t rows, int32_t width, BFloat16* out) override {
    Note(RunRmsNorm({.x = x,
                     .residual = residual,
                     .weight = weight,
                     .out = out,
                     .epsilon = epsilon,
                     .rows = rows,
                     .width = width},
                    stream_.get()),
         "RMS norm");
  }

  void Gemm(const BFloat16* x, int32_t rows, const PackedMatrix& w, const BFloat16* bias,
            BFloat16* y) override {
    Multiply(GemmOutput::kBFloat16, x, rows, w, bias, y);
  }

  void Logits(const BFloat16* x, int32_t rows, const PackedMatrix& w, float* y) override {
    Multiply(GemmOutput::kFloat, x, rows, w, nullptr, y);
  }

  void GatherLogitRows(const BFloat16* x, int32_t width, BFloat16* out) override {
    if (view().logit_row_count == 0) return;
    Note(RunGatherRows(x, view().logit_rows, view().logit_row_count, width, out, stream_.get()),
         "gathering rows");
  }

  void QkNorm(const AttentionShape& shape, const BFloat16* q_weight, const BFloat16* k_weight,
              float epsilon, BFloat16* qkv) override {
    Note(RunQkNorm({.shape = shape,
                    .q_weight = q_weight,
                    .k_weight = k_weight,
                    .qkv = qkv,
                    .epsilon = epsilon,
                    .rows = view().row_count},
                   stream_.get()),
         "q and k norm");
  }

  void RopeAndStoreKv(const AttentionShape& shape, const RopeTable& rope, BFloat16* qkv,
                      KvLayer kv) override {
    SELFSAME_CHECK(shape.head_dim % 16 == 0);
    Note(RunRopeAndStoreKv({.shape = shape,
                            .table = rope,
                            .positions = view().positions,
                            .kv_slots = view().kv_slots,
                            .qkv = qkv,
                            .kv = kv.data,
                            .rows = view().row_count},
                           stream_.get()),
         "RoPE");
  }

  void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                 BFloat16* out) override {
    PrepareShape(shape);
    if (!status_.ok()) return;
    const AttentionWork& work = pass_buffers_.work();
    auto* partials = partials_.data<float>();
    Note(RunAttention({.shape = shape,
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
                       .partial_state = partials + int64_t{kMaxPartialRows} * shape.output_width()},
                      stream_.get()),
         "attention");
  }

  void SiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out) override {
    Note(RunSiluMul(gate_up, rows, width, out, stream_.get()), "SiLU");
  }

  void ReduceRanks(BFloat16*, int64_t) override {}

  void Sample(const float* logits, int32_t vocab, std::span<const SampleRow> params,
              std::span<SampledToken> out) override {
    SELFSAME_CHECK(params.size() == out.size() &&
                   static_cast<int32_t>(params.size()) <= options_.max_logit_rows);
    if (params.empty()) return;
    if (!pending_samples_.empty()) Wait();
    DeliverSamples();
    std::memcpy(sample_params_host_.data(), params.data(), params.size_bytes());
    Note(cudaMemcpyAsync(sample_params_.data(), sample_params_host_.data(), params.size_bytes(),
                         cudaMemcpyHostToDevice, stream_.get()),
         "copying sampling parameters");
    Note(RunSample(logits, vocab, sample_params_.data<SampleRow>(),
                   static_cast<int32_t>(params.size()), sampled_.data<TokenLogprob>(),
                   top_.data<TokenLogprob>(), stream_.get()),
         "sampling");
    Note(cudaMemcpyAsync(sampled_host_.data(), sampled_.data(), out.size() * sizeof(TokenLogprob),
                         cudaMemcpyDeviceToHost, stream_.get()),
         "copying sampled tokens");
    if (std::any_of(params.begin(), params.end(),
                    [](const SampleRow& row) { return row.top_count > 0; })) {
      Note(cudaMemcpyAsync(top_host_.data(), top_.data(),
                           out.size() * kMaxTopLogprobs * sizeof(TokenLogprob),
                           cudaMemcpyDeviceToHost, stream_.get()),
           "copying top logprobs");
    }
    pending_samples_ = out;
    pending_vocab_ = vocab;
    if (pass_.has_value()) return;
    Wait();
    DeliverSamples();
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

  void DeliverSamples() {
    const auto* params = sample_params_host_.data<SampleRow>();
    const auto* sampled = sampled_host_.data<TokenLogprob>();
    const auto* top = top_host_.data<TokenLogprob>();
    for (size_t i = 0; i < pending_samples_.size() && status_.ok(); ++i) {
      const auto* row_top = top + i * kMaxTopLogprobs;
      pending_samples_[i] = {
          .token_id = sampled[i].token_id,
          .logprob = sampled[i].logprob,
          .top = TopLogprobs(row_top, row_top + std::min(params[i].top_count, pending_vocab_))};
    }
    pending_samples_ = {};
  }

  void Multiply(GemmOutput output, const BFloat16* x, int32_t rows, const PackedMatrix& w,
                const BFloat16* bias, void* y) {
    if (rows == 0 || !status_.ok()) return;
    const GemmShape shape = {.n = w.n(), .k = w.k(), .output = output, .has_bias = bias != nullptr};
    Note(plans_.Run(shape, rows, {.x = x, .w = Weights(w), .bias = bias, .y = y}));
  }

  // The first attention of a model tells the shape, from which its passes' work is cut.
  void PrepareShape(const AttentionShape& shape) {
    const auto group = [](const AttentionShape& a) { return a.head_count / a.kv_head_count; };
    if (shape_.has_value() && shape_->kv_head_count == shape.kv_head_count &&
        group(*shape_) == group(shape) && shape_->head_dim == shape.head_dim) {
      return;
    }
    shape_ = shape;
    absl::StatusOr<Memory> partials =
        Memory::Create(size_t{kMaxPartialRows} * sizeof(float) *
                       static_cast<size_t>(shape.output_width() + 2 * shape.head_count));
    if (!partials.ok()) return Note(partials.status());
    Wait();
    partials_ = *std::move(partials);
    Note(pass_buffers_.Upload(*pass_, &*shape_, stream_.get()));
  }

  const CudaOptions options_;
  const Device device_;
  Stream stream_;
  GemmPlans plans_;
  PassBuffers pass_buffers_;
  Memory partials_;  // output [kMaxPartialRows, heads, head_dim], then state [.., heads, 2]
  PinnedMemory sample_params_host_;
  PinnedMemory sampled_host_;
  PinnedMemory top_host_;  // [max_logit_rows, kMaxTopLogprobs]
  Memory sample_params_;
  Memory sampled_;
  Memory top_;
  std::optional<Pass> pass_;
  std::optional<AttentionShape> shape_;
  std::span<SampledToken> pending_samples_;
  int32_t pending_vocab_ = 0;
  absl::Status status_;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(const CudaOptions& options) {
  if (options.max_rows < 1 || options.max_logit_rows < 1) {
    return InvalidArgumentError("max_rows", "a pass needs at least one row and one logit row");
  }
  ASSIGN_OR_RETURN(cuda::Device device, cuda::OpenDevice(options.device));
  RETURN_IF_ERROR(cuda::ToStatus(cuda::PrepareAttention(), "preparing kernels"));
  ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create());
  ASSIGN_OR_RETURN(cuda::GemmLauncher launcher, cuda::GemmLauncher::Create(stream.get()));
  const cuda::AttentionLimits limits = {.schedule = options.schedule,
                                        .processor_count = device.processor_count,
                                        .max_partial_rows = cuda::kMaxPartialRows};
  ASSIGN_OR_RETURN(cuda::PassBuffers pass_buffers,
                   cuda::PassBuffers::Create(options.max_rows, options.max_logit_rows, limits));
  cuda::GemmPlans plans(std::move(launcher), {.schedule = options.schedule,
                                              .class_slack = options.class_slack,
                                              .max_rows = options.max_rows,
                                              .max_logit_rows = options.max_logit_rows,
                                              .plan_file = options.plan_file,
                                              .scope = cuda::ScopeOf(device)});
  auto ops = std::make_unique<cuda::CudaOps>(options, std::move(device), std::move(stream),
                                             std::move(plans), std::move(pass_buffers));
  RETURN_IF_ERROR(ops->AllocateSampling());
  return std::unique_ptr<Ops>(std::move(ops));
}

}  // namespace selfsame
