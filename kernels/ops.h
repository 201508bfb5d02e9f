#pragma once

// The operations a model's forward pass is written in (common/model/forward.h). A backend
// implements them for one device under one Schedule; kernels/README.md gives the arithmetic of
// each.
//
// All pointers named x, y, out, qkv, residual, table and so on are device memory (for the CPU
// backend: ordinary memory) obtained from Ops::Allocate. Activations are bf16 and rounded to bf16
// after every op; accumulation is float. Matrices are row-major: [rows, width]. Ops run in the
// order they are called. One thread at a time calls an Ops object.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/token_logprob.h"
#include "kernels/bfloat16.h"
#include "kernels/schedule.h"
#include "kernels/synthetic.h"

namespace selfsame {

inline constexpr int kKvBlockTokens = 16;

// Element types of a checkpoint; all are converted to bf16 when packed.
enum class DType { kBFloat16, kFloat16, kFloat32 };

// A row-major piece of a weight matrix in host memory. Row r starts at
// `data + r * row_stride * element size`; `row_stride` counts elements and is at least `cols`.
// Needs no alignment beyond the element's own.
struct MatrixPart {
  const void* data = nullptr;
  DType dtype = DType::kBFloat16;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
};

// A weight matrix W [n, k] in the layout its backend reads fastest. Immutable.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }

 protected:
  PackedMatrix(int64_t n, int64_t k) : n_(n), k_(k) {}

 private:
  int64_t n_;
  int64_t k_;
};

// Device memory with an owner.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 protected:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// The rows of a pass that belong to one sequence: consecutive rows at consecutive positions. Keys
// and values of positions before `first_position` are read from the cache; those of the rows
// themselves are written to it first and then read back.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t row_count = 0;
  int32_t first_position = 0;
  // Physical block of each 16 positions: [ceil((first_position + row_count) / 16)], host memory.
  const int32_t* block_table = nullptr;
};

// What one forward pass runs over. Rows that no sequence covers are padding: token 0, position 0,
// no KV written, attention output zero. Host memory, valid until Ops::EndPass returns.
struct Pass {
  int32_t row_count = 0;
  std::span<const int32_t> token_ids;       // [row_count]
  std::span<const int32_t> positions;       // [row_count]
  std::span<const SequenceRows> sequences;  // ordered by first_row
  std::span<const int32_t> logit_rows;      // rows whose logits are wanted, any order
};

// One layer's paged cache: [block][K then V][kv_head][16][head_dim] bf16.
struct KvLayer {
  BFloat16* data = nullptr;
};

struct AttentionShape {
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  bool operator==(const AttentionShape&) const = default;
  int32_t qkv_width() const { return (head_count + 2 * kv_head_count) * head_dim; }
  int32_t output_width() const { return head_count * head_dim; }
};

// cos and sin of every position: [max_positions][head_dim / 2] float each, built on the host in
// double (common/model/rope.h).
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int32_t max_positions = 0;
  bool operator==(const RopeTable&) const = default;
};

// RMS norm of each q and k head, of models that have it.
struct QkNorm {
  const BFloat16* q_weight = nullptr;  // [head_dim]
  const BFloat16* k_weight = nullptr;  // [head_dim]
  float epsilon = 0.0f;
  bool operator==(const QkNorm&) const = default;
};

// A change of one token's logit before a token is chosen, in this order:
//   x = logit + bias;  x = x > 0 ? x / repetition : x * repetition;  x = x - penalty.
// A bias of -infinity bans the token.
struct LogitEdit {
  int32_t token_id = 0;
  float bias = 0.0f;
  float repetition = 1.0f;  // above 0
  float penalty = 0.0f;
  bool operator==(const LogitEdit&) const = default;
};

// How one row of logits becomes a token.
struct SampleRow {
  float temperature = 0.0f;  // 0: greedy, ties to the lowest token id
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off; at most 1
  uint64_t seed = 0;
  int32_t choice_index = 0;
  int32_t position = 0;  // absolute position of the token being chosen
  // Not negative: no token is chosen; this one is taken, for its logprob.
  int32_t given_token = -1;
  // How many of the most likely tokens are wanted beside it, at most kMaxTopLogprobs.
  int32_t top_count = 0;
  // Host memory, valid until Sample returns. Distinct ids below the vocabulary's size, any order.
  std::span<const LogitEdit> edits = {};
};

struct SampledToken {
  int32_t token_id = 0;
  // log-softmax of the raw logits at token_id (before edits, temperature and filters).
  float logprob = 0.0f;
  // The row's top_count most likely tokens by raw logits, or all where there are fewer.
  TopLogprobs top{};
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual Schedule schedule() const = 0;

  // Names what the bits depend on beside the weights: backend, arithmetic version, device product.
  // Part of the fingerprint.
  virtual std::string ArithmeticId() const = 0;

  // Device memory, 64-byte aligned, zeroed. RESOURCE_EXHAUSTED when there is not enough.
  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t size_bytes) = 0;

  // Stacks `parts` along n, converts to bf16 (nearest even) and packs. All parts have the same
  // cols.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> PackMatrix(
      std::span<const MatrixPart> parts) = 0;
  // The same of parts that are computed where they are needed.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> GenerateMatrix(
      std::span<const SyntheticPart> parts) = 0;

  virtual void CopyToDevice(void* to_device, const void* from_host, size_t size_bytes) = 0;
  virtual void CopyToHost(void* to_host, const void* from_device, size_t size_bytes) = 0;

  // How often a pass must run until it runs as it will whenever it comes again; more than once on a
  // device that records passes.
  virtual int32_t runs_to_settle() const { return 1; }
  // How many recordings have been run so far, instead of the ops they stand for.
  virtual uint64_t replay_count() const { return 0; }
  // Drops what the device recorded, which may name memory that is to be freed and keeps others from
  // being recorded. REQUIRES: no pass is open.
  virtual void ForgetPasses() {}
  // Numbers of single rows, up to `max_rows`, that are worth a pass before the first request,
  // because the device measures, loads or records something for each.
  virtual std::vector<int32_t> WarmUpRowCounts(int32_t /*max_rows*/) const { return {1}; }

  // Opens a pass; the row ops below then work on its rows. REQUIRES: no pass is open.
  virtual void BeginPass(const Pass& pass) = 0;
  // Waits until everything called since BeginPass is done. An error here means the device is lost.
  virtual absl::Status EndPass() = 0;

  // out[r, :] = table[token_ids[r], :]. table: [vocab, hidden].  out: [row_count, hidden].
  virtual void Embed(const PackedMatrix& table, BFloat16* out) = 0;

  // out[r, i] = x[r, i] / sqrt(mean(x[r, :]^2) + epsilon) * weight[i].  [rows, width]
  virtual void RmsNorm(const BFloat16* x, const BFloat16* weight, float epsilon, int32_t rows,
                       int32_t width, BFloat16* out) = 0;

  // residual = bf16(residual + x); out = RmsNorm(residual).  [rows, width]
  // x is used up: what it holds afterwards is unspecified. `out` may be x.
  virtual void AddRmsNorm(BFloat16* residual, const BFloat16* x, const BFloat16* weight,
                          float epsilon, int32_t rows, int32_t width, BFloat16* out) = 0;

  // y = x · Wᵀ + bias.  x: [rows, k], y: [rows, n], bias: [n] or null.
  virtual void Gemm(const BFloat16* x, int32_t rows, const PackedMatrix& w, const BFloat16* bias,
                    BFloat16* y) = 0;

  // Float logits of the pass's logit rows.  x: [logit_rows, k], y: [logit_rows, n].
  virtual void Logits(const BFloat16* x, int32_t rows, const PackedMatrix& w, float* y) = 0;

  // out[i, :] = x[pass.logit_rows[i], :].  [.., width]
  virtual void GatherLogitRows(const BFloat16* x, int32_t width, BFloat16* out) = 0;

  // In place, on the pass's qkv rows [row_count, qkv_width]: norms each q and k head (unless `norm`
  // is null), rotates q and k by the row's position (pairs i and i + head_dim / 2, as Llama does),
  // rounds to bf16 after each and writes k and v to the cache. Padding rows write nothing there.
  virtual void RopeAndStoreKv(const AttentionShape& shape, const QkNorm* norm,
                              const RopeTable& rope, BFloat16* qkv, KvLayer kv) = 0;

  // Causal attention of every row of the pass over the cached positions 0 .. its own.
  // out: [row_count, output_width]; padding rows become zero. Scale: 1 / sqrt(head_dim).
  virtual void Attention(const AttentionShape& shape, const BFloat16* qkv, KvLayer kv,
                         BFloat16* out) = 0;

  // out[r, i] = silu(gate_up[r, i]) * gate_up[r, width + i].  gate_up: [rows, 2 * width].
  virtual void SiluMul(const BFloat16* gate_up, int32_t rows, int32_t width, BFloat16* out) = 0;

  // Adds the partial sums of all ranks, in rank order. One rank: leaves x as it is.
  virtual void ReduceRanks(BFloat16* x, int64_t count) = 0;

  // Chooses one token a row from logits [params.size(), vocab]; out: host memory, [params.size()].
  // A row's result depends on its own logits and parameters only, under both schedules.
  virtual void Sample(const float* logits, int32_t vocab, std::span<const SampleRow> params,
                      std::span<SampledToken> out) = 0;
};

}  // namespace selfsame
