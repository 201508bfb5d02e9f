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
#include "kernels/cpu/attention_tiles-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace selfsame::cpu::HWY_NAMESPACE {
namespace {

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
  float* q;           // [queries, head_dim]
  uint32_t* q_pairs;  // [queries, head_dim / 2]: the same as pairs of bf16
  uint32_t* keys;     // [head_dim / 2][64]: words of two neighbouring dimensions, the even one low
  float* scores;      // [queries, 64]; then probabilities
  float* lanes;       // [queries, 16]: sums of probabilities
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
  views.q_pairs = reinterpret_cast<uint32_t*>(take(int64_t{queries} * head_dim / 2));
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
      const int32_t first = row * group_ * head_dim_;
      for (int32_t i = 0; i < group_ * head_dim_; i += kLanes) {
        hn::Store(LoadBFloat16(from + i), FloatTag(), views_.q + first + i);
      }
      std::memcpy(views_.q_pairs + first / 2, from, group_ * head_dim_ * sizeof(BFloat16));
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
    const uint32_t* q_pairs = call_.has_bf16_dot ? views_.q_pairs + query * head_dim_ / 2 : nullptr;
    ScoreQueries<kQueries>(views_.q + query * head_dim_, q_pairs, head_dim_, scale_, views_.keys,
                           key_count, scores);
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
  const int64_t per_query = shape.head_dim * 3 / 2 + kTileKeys + kVectorFloats;
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
