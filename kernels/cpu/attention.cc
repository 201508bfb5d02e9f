#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/exp_log-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace selfsame::cpu::HWY_NAMESPACE {
namespace {

// Keys of a cache block, and of a virtual vector.
static_assert(kKvBlockTokens == kVirtualLanes);
constexpr int kTileBlocks = kTileKeys / kKvBlockTokens;
// Queries of a register tile.
constexpr int kTileQueries = 4;
// Virtual vectors of keys, and vectors of output dimensions, of a register tile.
constexpr int kScoreBlocks = kLanes == 16 ? 4 : 1;
constexpr int kOutputVectors = kLanes == 8 ? 2 : 4;

// exp of one float, inside vector code: the scalar function would call a library for its fused
// multiply-adds.
HWY_INLINE float ExpOfOne(float x) { return hn::GetLane(ExpVector(hn::Set(FloatTag(), x))); }

// What scanning keys leaves of each query; one contiguous piece of memory.
struct SplitState {
  float* max;     // [queries]
  float* sum;     // [queries]
  float* output;  // [queries, head_dim]
};

constexpr int64_t RoundUpToVector(int64_t count) {
  return (count + kVirtualLanes - 1) / kVirtualLanes * kVirtualLanes;
}

int64_t StateFloats(int32_t queries, int32_t head_dim) {
  return 2 * RoundUpToVector(queries) + int64_t{queries} * head_dim;
}

SplitState MakeState(float* floats, int32_t queries) {
  const int64_t padded = RoundUpToVector(queries);
  return {floats, floats + padded, floats + 2 * padded};
}

// Views into a thread's scratch. Queries are the rows × heads of a task, row-major.
struct Views {
  float* q;        // [queries, head_dim]
  uint32_t* keys;  // [head_dim / 2][64]: words of two neighbouring dimensions, the even one low
  float* scores;   // [queries, 64]; then probabilities
  float* lanes;    // [queries, 16]: sums of probabilities
  SplitState split;
  SplitState merged;
};

Views MakeViews(float* floats, int32_t queries, int32_t head_dim) {
  const auto take = [&floats](int64_t count) {
    float* taken = floats;
    floats += RoundUpToVector(count);
    return taken;
  };
  Views views;
  views.q = take(int64_t{queries} * head_dim);
  views.keys = reinterpret_cast<uint32_t*>(take(int64_t{head_dim} / 2 * kTileKeys));
  views.scores = take(int64_t{queries} * kTileKeys);
  views.lanes = take(int64_t{queries} * kVirtualLanes);
  views.split = MakeState(take(StateFloats(queries, head_dim)), queries);
  views.merged = MakeState(take(StateFloats(queries, head_dim)), queries);
  return views;
}

// Adds the state of the next split of a query to what earlier ones left.
HWY_INLINE void MergeQuery(const SplitState& next, int32_t query, int32_t head_dim,
                           const SplitState& merged) {
  const FloatTag d;
  const float max = std::max(merged.max[query], next.max[query]);
  const float before = ExpOfOne(merged.max[query] - max);
  const float now = ExpOfOne(next.max[query] - max);
  merged.max[query] = max;
  merged.sum[query] = std::fma(next.sum[query], now, merged.sum[query] * before);
  float* output = merged.output + int64_t{query} * head_dim;
  const float* added = next.output + int64_t{query} * head_dim;
  for (int32_t i = 0; i < head_dim; i += kLanes) {
    const FloatVec scaled = hn::Mul(hn::Load(d, output + i), hn::Set(d, before));
    hn::Store(hn::MulAdd(hn::Load(d, added + i), hn::Set(d, now), scaled), d, output + i);
  }
}

// Transposes a block of 16 keys, [16][head_dim] bf16, to columns of `keys`, 4 × 4 words at a time.
HWY_INLINE void TransposeBlock(const BFloat16* block, int32_t head_dim, uint32_t* keys) {
  const hn::FixedTag<uint32_t, 4> d4;
  const hn::FixedTag<uint64_t, 2> d2;
  const auto* words = reinterpret_cast<const uint32_t*>(block);
  const int32_t pairs = head_dim / 2;
  for (int32_t pair = 0; pair < pairs; pair += 4) {
    for (int key = 0; key < kKvBlockTokens; key += 4) {
      const uint32_t* from = words + key * pairs + pair;
      const auto a = hn::LoadU(d4, from);
      const auto b = hn::LoadU(d4, from + pairs);
      const auto c = hn::LoadU(d4, from + 2 * pairs);
      const auto e = hn::LoadU(d4, from + 3 * pairs);
      const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));
      const auto ab_high = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));
      const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
      const auto ce_high = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
      uint32_t* to = keys + pair * kTileKeys + key;
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ce_low)), d4, to);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ce_low)), d4, to + kTileKeys);
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ce_high)), d4, to + 2 * kTileKeys);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ce_high)), d4, to + 3 * kTileKeys);
    }
  }
}

// Scaled scores of kQueries queries against kScoreBlocks × 16 keys.
template <int kQueries>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, int32_t head_dim, float scale,
                          const uint32_t* HWY_RESTRICT keys, float* HWY_RESTRICT scores) {
  constexpr int kKeyVectors = kScoreBlocks * kVectors;
  const FloatTag d;
  const WordTag words;
  const WordVec upper = hn::Set(words, 0xffff0000u);
  FloatVec acc[kQueries][kKeyVectors];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kKeyVectors; ++v) acc[i][v] = hn::Zero(d);
  }
  for (int32_t pair = 0; pair < head_dim / 2; ++pair) {
    FloatVec even[kKeyVectors];
    FloatVec odd[kKeyVectors];
    for (int v = 0; v < kKeyVectors; ++v) {
      const WordVec word = hn::Load(words, keys + pair * kTileKeys + v * kLanes);
      even[v] = hn::BitCast(d, hn::ShiftLeft<16>(word));
      odd[v] = hn::BitCast(d, hn::And(word, upper));
    }
    for (int i = 0; i < kQueries; ++i) {
      const FloatVec q0 = hn::Set(d, q[i * head_dim + pair * 2]);
      const FloatVec q1 = hn::Set(d, q[i * head_dim + pair * 2 + 1]);
      for (int v = 0; v < kKeyVectors; ++v) acc[i][v] = hn::MulAdd(q0, even[v], acc[i][v]);
      for (int v = 0; v < kKeyVectors; ++v) acc[i][v] = hn::MulAdd(q1, odd[v], acc[i][v]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kKeyVectors; ++v) {
      hn::Store(hn::Mul(acc[i][v], hn::Set(d, scale)), d, scores + i * kTileKeys + v * kLanes);
    }
  }
}

// Turns a query's scores into probabilities against its running max, and updates max and sums. Keys
// from `key_count` (1 to 64) on are treated as absent. Returns alpha.
HWY_INLINE float Softmax(int32_t key_count, float* HWY_RESTRICT scores, float* max,
                         float* HWY_RESTRICT sums) {
  const FloatTag d;
  constexpr int kTileVectors = kTileKeys / kLanes;
  const FloatVec absent = hn::Set(d, -std::numeric_limits<float>::infinity());
  FloatVec score[kTileVectors];
  FloatVec tile_max = absent;
  for (int v = 0; v < kTileVectors; ++v) {
    score[v] = hn::Load(d, scores + v * kLanes);
    if (key_count < (v + 1) * kLanes) {
      const int32_t present = std::max(0, key_count - v * kLanes);
      score[v] = hn::IfThenElse(hn::FirstN(d, present), score[v], absent);
    }
    tile_max = hn::Max(tile_max, score[v]);
  }
  const FloatVec new_max = hn::Max(hn::MaxOfLanes(d, tile_max), hn::Set(d, *max));
  const FloatVec alpha = ExpVector(hn::Sub(hn::Set(d, *max), new_max));
  *max = hn::GetLane(new_max);
  FloatVec lanes[kVectors];
  for (int v = 0; v < kVectors; ++v) lanes[v] = hn::Mul(hn::Load(d, sums + v * kLanes), alpha);
  for (int v = 0; v < kTileVectors; ++v) {
    const FloatVec p = ExpVector(hn::Sub(score[v], new_max));
    hn::Store(p, d, scores + v * kLanes);
    lanes[v % kVectors] = hn::Add(lanes[v % kVectors], p);
  }
  for (int v = 0; v < kVectors; ++v) hn::Store(lanes[v], d, sums + v * kLanes);
  return hn::GetLane(alpha);
}

// output = output * alpha + probabilities · values for kQueries queries and kDims vectors of
// dimensions. values(block) is the first value of a 16-key block.
template <int kQueries, int kDims>
HWY_INLINE void OutputTile(const float* HWY_RESTRICT probabilities, const float* alpha,
                           const BFloat16* const* values, int32_t key_count, int32_t head_dim,
                           int32_t first_dim, float* HWY_RESTRICT output) {
  const FloatTag d;
  FloatVec acc[kQueries][kDims];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kDims; ++v) {
      acc[i][v] = hn::Mul(hn::Load(d, output + i * head_dim + first_dim + v * kLanes),
                          hn::Set(d, alpha[i]));
    }
  }
  for (int32_t block = 0; block * kKvBlockTokens < key_count; ++block) {
    const BFloat16* value = values[block] + first_dim;
    const float* p = probabilities + block * kKvBlockTokens;
    const int32_t keys = std::min(kKvBlockTokens, key_count - block * kKvBlockTokens);
    for (int32_t key = 0; key < keys; ++key, value += head_dim) {
      FloatVec row[kDims];
      for (int v = 0; v < kDims; ++v) row[v] = LoadBFloat16(value + v * kLanes);
      for (int i = 0; i < kQueries; ++i) {
        const FloatVec weight = hn::Set(d, p[i * kTileKeys + key]);
        for (int v = 0; v < kDims; ++v) acc[i][v] = hn::MulAdd(weight, row[v], acc[i][v]);
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kDims; ++v) {
      hn::Store(acc[i][v], d, output + i * head_dim + first_dim + v * kLanes);
    }
  }
}

template <int kQueries>
void OutputQueries(const float* probabilities, const float* alpha, const BFloat16* const* values,
                   int32_t key_count, int32_t head_dim, float* output) {
  int32_t dim = 0;
  for (; dim + kOutputVectors * kLanes <= head_dim; dim += kOutputVectors * kLanes) {
    OutputTile<kQueries, kOutputVectors>(probabilities, alpha, values, key_count, head_dim, dim,
                                         output);
  }
  for (; dim < head_dim; dim += kVirtualLanes) {
    OutputTile<kQueries, kVectors>(probabilities, alpha, values, key_count, head_dim, dim, output);
  }
}

// Scores of a run of queries against the first `key_count` keys of the tile, rounded up to blocks.
template <int kQueries>
void ScoreQueries(const float* q, int32_t head_dim, float scale, const uint32_t* keys,
                  int32_t key_count, float* scores) {
  for (int32_t key = 0; key < key_count; key += kScoreBlocks * kVirtualLanes) {
    ScoreTile<kQueries>(q, head_dim, scale, keys + key, scores + key);
  }
}

// Scans keys for the queries of one task.
class Attender {
 public:
  Attender(const AttentionCall& call, const AttentionTask& task, const AttentionScratch& scratch)
      : call_(call),
        task_(task),
        head_dim_(call.shape.head_dim),
        group_(call.shape.head_count / call.shape.kv_head_count),
        queries_(task.row_count * group_),
        views_(MakeViews(scratch.data, queries_, head_dim_)),
        head_stride_(int64_t{kKvBlockTokens} * head_dim_),
        kind_stride_(head_stride_ * call.shape.kv_head_count),
        scale_(1.0f / std::sqrt(static_cast<float>(head_dim_))),
        first_position_(task.sequence.first_position + task.row_begin) {
    LoadQueries();
  }

  // Scans the tiles of a split for the rows that reach it; the result is in `state`.
  void ScanSplit(int32_t split, const SplitState& state) {
    const int32_t split_begin = split * call_.split_keys;
    const int32_t split_end = std::min(split_begin + call_.split_keys, task_.key_count());
    std::fill_n(state.max, queries_, -std::numeric_limits<float>::infinity());
    std::fill_n(state.output, queries_ * head_dim_, 0.0f);
    std::fill_n(views_.lanes, queries_ * kVirtualLanes, 0.0f);
    for (int32_t begin = split_begin; begin < split_end; begin += kTileKeys) {
      ScanTile(begin, std::min(kTileKeys, split_end - begin), state);
    }
    for (int32_t query = FirstQuery(split_begin); query < queries_; ++query) {
      state.sum[query] = SumLanes(views_.lanes + query * kVirtualLanes);
    }
  }

  // Scans all splits; the result is in the merged state.
  void ScanAll() {
    ScanSplit(0, views_.merged);
    for (int32_t split = 1; split < TaskSplits(call_, task_); ++split) {
      ScanSplit(split, views_.split);
      for (int32_t query = FirstQuery(split * call_.split_keys); query < queries_; ++query) {
        MergeQuery(views_.split, query, head_dim_, views_.merged);
      }
    }
  }

  const SplitState& merged() const { return views_.merged; }

 private:
  void LoadQueries() {
    const int32_t width = call_.shape.qkv_width();
    for (int32_t row = 0; row < task_.row_count; ++row) {
      const BFloat16* from = call_.qkv +
                             int64_t{task_.sequence.first_row + task_.row_begin + row} * width +
                             task_.kv_head * group_ * head_dim_;
      float* to = views_.q + row * group_ * head_dim_;
      for (int32_t i = 0; i < group_ * head_dim_; i += kLanes) {
        hn::Store(LoadBFloat16(from + i), FloatTag(), to + i);
      }
    }
  }

  // The first query whose row may see keys from `position` on.
  int32_t FirstQuery(int32_t position) const {
    return std::max(0, position - first_position_) * group_;
  }

  const BFloat16* KeyBlock(int32_t position) const {
    const int64_t block = task_.sequence.block_table[position / kKvBlockTokens];
    return call_.kv + block * 2 * kind_stride_ + task_.kv_head * head_stride_;
  }

  void ScanTile(int32_t tile_begin, int32_t key_count, const SplitState& state) {
    const BFloat16* values[kTileBlocks];
    for (int block = 0; block * kKvBlockTokens < key_count; ++block) {
      const BFloat16* keys = KeyBlock(tile_begin + block * kKvBlockTokens);
      TransposeBlock(keys, head_dim_, views_.keys + block * kKvBlockTokens);
      values[block] = keys + kind_stride_;
    }
    // Queries whose row lies inside the tile see part of it, each row its own; later ones see all.
    const int32_t tile_last = tile_begin + kTileKeys - 1;
    const int32_t full_query =
        std::min(queries_, std::max(0, tile_last - first_position_) * group_);
    int32_t query = FirstQuery(tile_begin);
    while (query < queries_) {
      const bool is_full = query >= full_query;
      const int32_t run_end = is_full ? queries_ : (query / group_ + 1) * group_;
      const int32_t keys = is_full ? kTileKeys : first_position_ + query / group_ - tile_begin + 1;
      const int32_t count = std::min(kTileQueries, run_end - query);
      switch (count) {
        case 1:
          ScanQueries<1>(query, keys, values, state);
          break;
        case 2:
          ScanQueries<2>(query, keys, values, state);
          break;
        case 3:
          ScanQueries<3>(query, keys, values, state);
          break;
        default:
          ScanQueries<4>(query, keys, values, state);
          break;
      }
      query += count;
    }
  }

  template <int kQueries>
  void ScanQueries(int32_t query, int32_t key_count, const BFloat16* const* values,
                   const SplitState& state) {
    float* scores = views_.scores + query * kTileKeys;
    float alpha[kQueries];
    ScoreQueries<kQueries>(views_.q + query * head_dim_, head_dim_, scale_, views_.keys, key_count,
                           scores);
    for (int i = 0; i < kQueries; ++i) {
      alpha[i] = Softmax(key_count, scores + i * kTileKeys, state.max + query + i,
                         views_.lanes + (query + i) * kVirtualLanes);
    }
    OutputQueries<kQueries>(scores, alpha, values, key_count, head_dim_,
                            state.output + query * head_dim_);
  }

  const AttentionCall& call_;
  const AttentionTask& task_;
  const int32_t head_dim_;
  const int32_t group_;
  const int32_t queries_;
  const Views views_;
  const int64_t head_stride_;  // elements of a block's one head
  const int64_t kind_stride_;  // from a block's keys to its values
  const float scale_;
  const int32_t first_position_;
};

void StoreOutput(const AttentionCall& call, const AttentionTask& task, const SplitState& state) {
  const FloatTag d;
  const int32_t head_dim = call.shape.head_dim;
  const int32_t group = call.shape.head_count / call.shape.kv_head_count;
  for (int32_t query = 0; query < task.row_count * group; ++query) {
    const int64_t row = task.sequence.first_row + task.row_begin + query / group;
    BFloat16* to = call.out + row * call.shape.output_width() +
                   (task.kv_head * group + query % group) * head_dim;
    const float* from = state.output + query * head_dim;
    const FloatVec sum = hn::Set(d, state.sum[query]);
    for (int32_t i = 0; i < head_dim; i += kLanes) {
      StoreBFloat16(hn::Div(hn::Load(d, from + i), sum), to + i);
    }
  }
}

void AttendTask(const AttentionCall& call, const AttentionTask& task,
                const AttentionScratch& scratch) {
  Attender attender(call, task, scratch);
  attender.ScanAll();
  StoreOutput(call, task, attender.merged());
}

void AttendTaskSplit(const AttentionCall& call, const AttentionTask& task, int32_t split,
                     const AttentionScratch& scratch, float* partial) {
  const int32_t group = call.shape.head_count / call.shape.kv_head_count;
  Attender attender(call, task, scratch);
  attender.ScanSplit(split, MakeState(partial, task.row_count * group));
}

void MergeTask(const AttentionCall& call, const AttentionTask& task, float* partials) {
  const int32_t queries = task.row_count * (call.shape.head_count / call.shape.kv_head_count);
  const SplitState merged = MakeState(partials, queries);
  const int64_t floats = SplitFloats(call, task);
  for (int32_t split = 1; split < TaskSplits(call, task); ++split) {
    const SplitState next = MakeState(partials + split * floats, queries);
    for (int32_t query = 0; query < queries; ++query) {
      MergeQuery(next, query, call.shape.head_dim, merged);
    }
  }
  StoreOutput(call, task, merged);
}

}  // namespace
}  // namespace selfsame::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace selfsame::cpu {
namespace {
constexpr int64_t kVectorFloats = 16;

HWY_EXPORT(AttendTask);
HWY_EXPORT(AttendTaskSplit);
HWY_EXPORT(MergeTask);

int64_t PadFloats(int64_t count) {
  return (count + kVectorFloats - 1) / kVectorFloats * kVectorFloats;
}

int64_t PartialFloats(int32_t queries, int32_t head_dim) {
  return 2 * PadFloats(queries) + int64_t{queries} * head_dim;
}

}  // namespace

int64_t AttentionScratchFloats(const AttentionShape& shape, int32_t query_count) {
  const int64_t per_query = shape.head_dim + kTileKeys + kVectorFloats;
  return PadFloats(per_query * query_count + int64_t{shape.head_dim} / 2 * kTileKeys +
                   2 * PartialFloats(query_count, shape.head_dim));
}

int32_t AttentionTaskRows(const AttentionShape& shape) {
  return std::max(1, kTaskQueries / (shape.head_count / shape.kv_head_count));
}

void Attend(const AttentionCall& call, const AttentionTask& task, const AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(AttendTask)(call, task, scratch);
}

int32_t TaskSplits(const AttentionCall& call, const AttentionTask& task) {
  return (task.key_count() + call.split_keys - 1) / call.split_keys;
}

int64_t SplitFloats(const AttentionCall& call, const AttentionTask& task) {
  return PartialFloats(task.row_count * (call.shape.head_count / call.shape.kv_head_count),
                       call.shape.head_dim);
}

void AttendSplit(const AttentionCall& call, const AttentionTask& task, int32_t split,
                 const AttentionScratch& scratch, float* partial) {
  SELFSAME_CHECK(task.row_count == 1);
  HWY_DYNAMIC_DISPATCH(AttendTaskSplit)(call, task, split, scratch, partial);
}

void MergeAttention(const AttentionCall& call, const AttentionTask& task, float* partials) {
  HWY_DYNAMIC_DISPATCH(MergeTask)(call, task, partials);
}

}  // namespace selfsame::cpu
#endif
