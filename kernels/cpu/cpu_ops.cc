#include "kernels/cpu/cpu_ops.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/errors.h"
#include "hwy/targets.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/fast_plan.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_bf16_dot.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/sampling.h"
#include "kernels/cpu/thread_pool.h"

namespace selfsame {
namespace {

using cpu::AttentionTask;
using cpu::CpuPackedMatrix;
using cpu::GemmOutput;

// Changes whenever the canonical arithmetic of any op does.
constexpr char kArithmeticVersion[] = "cpu/2";

// Below this many elements a row op is done before another thread would have joined.
constexpr int64_t kElementsPerTask = 16384;
int UsableCpuCount() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return 1;
  return std::max(1, CPU_COUNT(&cpus));
}

bool HasFusedMultiplyAdd() {
#if HWY_ARCH_X86
  return (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL)) != 0;
#else
  return (hwy::SupportedTargets() & HWY_NEON) != 0;
#endif
}

class CpuOps : public Ops {
 public:
  CpuOps(Schedule schedule, int thread_count)
      : schedule_(schedule), pool_(thread_count), sample_scratch_(thread_count) {}

  Schedule schedule() const override { return schedule_; }
  std::string ArithmeticId() const override { return kArithmeticVersion; }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t size_bytes) override {
    return cpu::CpuBuffer::Create(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackMatrix(
      std::span<const MatrixPart> parts) override {
    return cpu::Pack(parts, arena_, pool_);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> GenerateMatrix(
      std::span<const SyntheticPart> parts) override;
  void CopyToDevice(void* to_device, const void* from_host, size_t size_bytes) override {
    std::memcpy(to_device, from_host, size_bytes);
  }
  void CopyToHost(void* to_host, const void* from_device, size_t size_bytes) override {
    std::memcpy(to_host, from_device, size_bytes);
  }

  void BeginPass(const Pass& pass) override;
  absl::Status EndPass() override;
  void Embed(const PackedMatrix& table, BFloat16* out) override;
  void RmsNorm(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t rows,
               int32_t width, BFloat16* out) override;
  void AddRmsNorm(BFloat16* residual, const BFloat16* x, const BFloat16* weight, float epsilon,
                  int32_t rows, int32_t width, BFloat16* out) override;
  void Gemm(const BFloat16* x, int32_t rows, const PackedMatrix& w, const BFloat16* bias,
            BFloat16* y) override {
    RunGemm(x, rows, static_cast<const CpuPackedMatrix&>(w), {y, nullptr, bias});
  }
  void Logits(const BFloat16* x, int32_t rows, const PackedMatrix& w, float* y) override {
    RunGemm(x, rows, static_cast<const CpuPackedMatrix&>(w), {nullptr, y, nullptr});
  }
  void GatherLogitRows(const BFloat16* x, int32_t width, BFloat16* out) override;
  void RopeAndStoreKv(const AttentionShape& shape, const QkNorm* norm, const RopeTable& rope,
                      BFloat16* qkv, KvLayer kv) override;
  void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                 BFloat16* out) override;
  void SiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out) override;
  void ReduceRanks(BFloat16*, int64_t) override {}
  void Sample(const float* logits, int32_t vocab, std::span<const SampleRow> params,
              std::span<SampledToken> out) override;

 private:
  // Where a row of the pass belongs. `sequence` -1: padding.
  struct RowPlace {
    int32_t sequence = -1;
    int32_t position = 0;
  };

  // One split of a task of the current Attention call, and where its result goes among the
  // partials.
  struct TaskSplit {
    int32_t task;
    int32_t split;
    int64_t partial_offset;
  };

  void MakeAttentionTasks(const AttentionShape& shape);
  void AttendInSplits(const cpu::AttentionCall& call, int64_t thread_floats, float* floats);
  void RunGemm(const BFloat16* x, int32_t rows, const CpuPackedMatrix& w, const GemmOutput& out);

  // Calls body(row) for every row, on several threads when there is work enough for them.
  template <typename Body>
  void ForRows(int32_t rows, int64_t row_elements, const Body& body) {
    const auto rows_per_task =
        static_cast<int32_t>(std::max<int64_t>(1, kElementsPerTask / row_elements));
    pool_.Run((rows + rows_per_task - 1) / rows_per_task, [&](int task, int) {
      const int32_t end = std::min(rows, (task + 1) * rows_per_task);
      for (int32_t row = task * rows_per_task; row < end; ++row) body(row);
    });
  }

  void RopeRow(const AttentionShape& shape, const QkNorm* norm, const RopeTable& rope,
               const RowPlace& place, BFloat16* row, BFloat16* kv) const;

  const Schedule schedule_;
  cpu::ThreadPool pool_;
  cpu::WeightArena arena_;

  bool is_pass_open_ = false;
  Pass pass_;
  std::vector<RowPlace> places_;      // [row_count]
  std::vector<AttentionTask> tasks_;  // of the current Attention call
  std::vector<TaskSplit> splits_;     // likewise, when they are shared out
  absl::Status status_;

  cpu::Scratch widened_;
  cpu::Scratch attention_;
  cpu::Scratch partials_;
  std::vector<cpu::SampleScratch> sample_scratch_;  // one a thread
};

absl::StatusOr<std::unique_ptr<PackedMatrix>> CpuOps::GenerateMatrix(
    std::span<const SyntheticPart> parts) {
  std::vector<std::vector<BFloat16>> values;
  std::vector<MatrixPart> made;
  for (const SyntheticPart& part : parts) {
    const auto cols = static_cast<size_t>(part.cols);
    std::vector<BFloat16>& rows = values.emplace_back(static_cast<size_t>(part.rows) * cols);
    pool_.Run(static_cast<int>(part.rows), [&](int row, int) {
      for (size_t col = 0; col < cols; ++col) {
        rows[static_cast<size_t>(row) * cols + col] =
            ToBFloat16(SyntheticElement(part, row, static_cast<int64_t>(col)));
      }
    });
    made.push_back(
        {.data = rows.data(), .rows = part.rows, .cols = part.cols, .row_stride = part.cols});
  }
  return PackMatrix(made);
}

void CpuOps::BeginPass(const Pass& pass) {
  SELFSAME_CHECK(!is_pass_open_);
  is_pass_open_ = true;
  pool_.Wake();
  pass_ = pass;
  places_.assign(pass.row_count, RowPlace());
  for (size_t i = 0; i < pass.sequences.size(); ++i) {
    const SequenceRows& rows = pass.sequences[i];
    SELFSAME_CHECK(rows.first_row >= 0 && rows.first_row + rows.row_count <= pass.row_count);
    for (int32_t row = 0; row < rows.row_count; ++row) {
      places_[rows.first_row + row] = {static_cast<int32_t>(i), rows.first_position + row};
    }
  }
}

absl::Status CpuOps::EndPass() {
  SELFSAME_CHECK(is_pass_open_);
  is_pass_open_ = false;
  return std::exchange(status_, absl::OkStatus());
}

void CpuOps::Embed(const PackedMatrix& table, BFloat16* out) {
  const auto& packed = static_cast<const CpuPackedMatrix&>(table);
  ForRows(pass_.row_count, packed.k(),
          [&](int32_t row) { packed.CopyRow(pass_.token_ids[row], out + row * packed.k()); });
}

void CpuOps::RmsNorm(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t rows,
                     int32_t width, BFloat16* out) {
  ForRows(rows, width, [&](int64_t row) {
    cpu::RmsNormRow(x + row * width, weight, epsilon, width, out + row * width);
  });
}

void CpuOps::AddRmsNorm(BFloat16* residual, const BFloat16* x, const BFloat16* weight,
                        float epsilon, int32_t rows, int32_t width, BFloat16* out) {
  ForRows(rows, width, [&](int64_t row) {
    cpu::AddRow(x + row * width, width, residual + row * width);
    cpu::RmsNormRow(residual + row * width, weight, epsilon, width, out + row * width);
  });
}

void CpuOps::RunGemm(const BFloat16* x, int32_t rows, const CpuPackedMatrix& w,
                     const GemmOutput& out) {
  const cpu::GemmPlan plan =
      cpu::PlanGemm(schedule_, rows, w.k(), cpu::HasBf16Dot(), cpu::GemmLanes());
  // An odd k needs a zero after it; sixteen more floats keep rows of a power of two from sharing
  // cache sets.
  const int64_t stride = (w.k() + 15) / 16 * 16 + 16;
  float* widened = nullptr;
  int64_t row_bytes = w.k() * static_cast<int64_t>(sizeof(BFloat16));
  if (plan.kernel != cpu::GemmKernel::kBf16Dot) {
    widened = widened_.Floats(rows * stride, status_);
    if (widened == nullptr) return;
    row_bytes = stride * static_cast<int64_t>(sizeof(float));
    ForRows(rows, w.k(),
            [&](int32_t row) { cpu::WidenRows(x, row, row + 1, w.k(), stride, widened); });
  }

  const cpu::GemmTasks tasks(rows, row_bytes, w);
  pool_.Run(tasks.count(), [&](int task, int) {
    const cpu::GemmRange range = tasks.Range(task);
    switch (plan.kernel) {
      case cpu::GemmKernel::kCanonical:
        cpu::GemmCanonical(widened, stride, w, range, out);
        break;
      case cpu::GemmKernel::kFewRows:
        cpu::GemmFewRows(widened, stride, w, range, plan.chains, out);
        break;
      case cpu::GemmKernel::kBf16Dot:
        cpu::GemmBf16Dot(x, w, range, plan.chains, out);
        break;
    }
  });
}

void CpuOps::GatherLogitRows(const BFloat16* x, int32_t width, BFloat16* out) {
  for (size_t i = 0; i < pass_.logit_rows.size(); ++i) {
    std::copy_n(x + int64_t{pass_.logit_rows[i]} * width, width, out + i * width);
  }
}

void CpuOps::RopeRow(const AttentionShape& shape, const QkNorm* norm, const RopeTable& rope,
                     const RowPlace& place, BFloat16* row, BFloat16* kv) const {
  SELFSAME_CHECK(place.position < rope.max_positions);
  const int64_t offset = int64_t{place.position} * (shape.head_dim / 2);
  const int32_t rotated_heads = shape.head_count + shape.kv_head_count;
  for (int32_t i = 0; i < rotated_heads; ++i) {
    BFloat16* head = row + i * shape.head_dim;
    if (norm != nullptr) {
      const BFloat16* weight = i < shape.head_count ? norm->q_weight : norm->k_weight;
      cpu::RmsNormRow(head, weight, norm->epsilon, shape.head_dim, head);
    }
    cpu::RopeHead(rope.cos + offset, rope.sin + offset, shape.head_dim, head);
  }
  if (place.sequence < 0) return;
  const int64_t block =
      pass_.sequences[place.sequence].block_table[place.position / kKvBlockTokens];
  const int64_t slot = place.position % kKvBlockTokens;
  for (int32_t kind = 0; kind < 2; ++kind) {
    for (int32_t head = 0; head < shape.kv_head_count; ++head) {
      const BFloat16* from =
          row + (shape.head_count + kind * shape.kv_head_count + head) * shape.head_dim;
      const int64_t to = ((block * 2 + kind) * shape.kv_head_count + head) * kKvBlockTokens + slot;
      std::copy_n(from, shape.head_dim, kv + to * shape.head_dim);
    }
  }
}

void CpuOps::RopeAndStoreKv(const AttentionShape& shape, const QkNorm* norm, const RopeTable& rope,
                            BFloat16* qkv, KvLayer kv) {
  const int32_t width = shape.qkv_width();
  ForRows(pass_.row_count, width, [&](int64_t row) {
    RopeRow(shape, norm, rope, places_[row], qkv + row * width, kv.data);
  });
}

void CpuOps::Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                       BFloat16* out) {
  SELFSAME_CHECK(shape.head_dim % 16 == 0 && shape.head_dim <= cpu::kMaxHeadDim);
  MakeAttentionTasks(shape);
  const int32_t width = shape.output_width();
  for (int32_t row = 0; row < pass_.row_count; ++row) {
    if (places_[row].sequence < 0) std::fill_n(out + int64_t{row} * width, width, BFloat16{0});
  }
  int32_t row_count = 0;
  int32_t key_count = 0;
  for (const AttentionTask& task : tasks_) {
    row_count = std::max(row_count, task.row_count);
    key_count = std::max(key_count, task.key_count());
  }
  const cpu::AttentionPlan plan = cpu::PlanAttention(schedule_, static_cast<int32_t>(tasks_.size()),
                                                     row_count, key_count, pool_.thread_count());
  const cpu::AttentionCall call = {shape, qkv, kv.data, out, cpu::HasBf16Dot(), plan.split_keys};
  const int64_t thread_floats =
      cpu::AttentionScratchFloats(shape, row_count * (shape.head_count / shape.kv_head_count));
  float* floats = attention_.Floats(thread_floats * pool_.thread_count(), status_);
  if (floats == nullptr) return;
  if (plan.shares_splits) {
    AttendInSplits(call, thread_floats, floats);
    return;
  }
  pool_.Run(static_cast<int>(tasks_.size()), [&](int task, int thread) {
    cpu::Attend(call, tasks_[task], {floats + thread * thread_floats});
  });
}

void CpuOps::MakeAttentionTasks(const AttentionShape& shape) {
  const int32_t task_rows = cpu::AttentionTaskRows(shape);
  tasks_.clear();
  for (const SequenceRows& sequence : pass_.sequences) {
    for (int32_t row = 0; row < sequence.row_count; row += task_rows) {
      for (int32_t head = 0; head < shape.kv_head_count; ++head) {
        tasks_.push_back({sequence, row, std::min(task_rows, sequence.row_count - row), head});
      }
    }
  }
}

void CpuOps::AttendInSplits(const cpu::AttentionCall& call, int64_t thread_floats, float* floats) {
  splits_.clear();
  int64_t partial_floats = 0;
  for (size_t task = 0; task < tasks_.size(); ++task) {
    for (int32_t split = 0; split < cpu::TaskSplits(call, tasks_[task]); ++split) {
      splits_.push_back({static_cast<int32_t>(task), split, partial_floats});
      partial_floats += cpu::SplitFloats(call, tasks_[task]);
    }
  }
  float* partials = partials_.Floats(partial_floats, status_);
  if (partials == nullptr) return;
  pool_.Run(static_cast<int>(splits_.size()), [&](int index, int thread) {
    const TaskSplit& split = splits_[index];
    cpu::AttendSplit(call, tasks_[split.task], split.split, {floats + thread * thread_floats},
                     partials + split.partial_offset);
  });
  for (const TaskSplit& split : splits_) {
    if (split.split == 0) {
      cpu::MergeAttention(call, tasks_[split.task], partials + split.partial_offset);
    }
  }
}

void CpuOps::SiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out) {
  ForRows(rows, width, [&](int64_t row) {
    const BFloat16* gate = gate_up + row * 2 * width;
    cpu::SiluMulRow(gate, gate + width, width, out + row * width);
  });
}

void CpuOps::Sample(const float* logits, int32_t vocab, std::span<const SampleRow> params,
                    std::span<SampledToken> out) {
  SELFSAME_CHECK(out.size() == params.size());
  pool_.Run(static_cast<int>(params.size()), [&](int row, int thread) {
    out[row] = cpu::SampleToken(logits + int64_t{row} * vocab, vocab, params[row],
                                sample_scratch_[thread]);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> CreateCpuOps(const CpuOptions& options) {
  if (!HasFusedMultiplyAdd()) {
    return FailedPreconditionError(
        "the CPU backend needs fused multiply-add (x86: AVX2 and FMA), which this CPU lacks");
  }
  if (options.thread_count < 0) {
    return InvalidArgumentError("thread_count", "must be 0 (one a CPU) or positive");
  }
  const int thread_count = options.thread_count > 0 ? options.thread_count : UsableCpuCount();
  return std::unique_ptr<Ops>(std::make_unique<CpuOps>(options.schedule, thread_count));
}

}  // namespace selfsame
