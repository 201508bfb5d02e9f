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

// Views into a thread's scratch. q counts queries: row-major over (row, head of the group).
struct Views {
  float* q;           // [queries, head_dim]
  uint32_t* keys;     // [head_dim / 2][64]: words of two neighbouring dimensions, the even one low
  float* scores;      // [queries, 64]; then probabilities
  float* max;         // [queries]
  float* sums;        // [queries, 16]
  float* output;      // [queries, head_dim]
  float* merged_max;  // [queries]
  float* merged_sum;  // [queries]
  float* merged_output;  // [queries, head_dim]
};

Views MakeViews(const AttentionScratch& scratch, int32_t queries, int32_t head_dim) {
  Views views;
  float* next = scratch.data;
  const auto take = [&next](int64_t count) {
    float* taken = next;
    next += (count + kVirtualLanes - 1) / kVirtualLanes * kVirtualLanes;
    return taken;
  };
  views.q = take(int64_t{queries} * head_dim);
  views.keys = reinterpret_cast<uint32_t*>(take(int64_t{head_dim} / 2 * kTileKeys));
  views.scores = take(int64_t{queries} * kTileKeys);
  views.max = take(queries);
  views.sums = take(int64_t{queries} * kVirtualLanes);
  views.output = take(int64_t{queries} * head_dim);
  views.merged_max = take(queries);
  views.merged_sum = take(queries);
  views.merged_output = take(int64_t{queries} * head_dim);
  return views;
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
HWY_INLINE float Softmax(int32_t key_count, float* scores, float* max, float* sums) {
  const FloatTag d;
  constexpr int kTileVectors = kTileKeys / kLanes;
  const FloatVec absent = hn::Set(d, -std::numeric_limits<float>::infinity());
  FloatVec tile_max = absent;
  const int vectors = (key_count + kLanes - 1) / kLanes;
  for (int v = 0; v < vectors; ++v) {
    FloatVec score = hn::Load(d, scores + v * kLanes);
    if (key_count < (v + 1) * kLanes) {
      score = hn::IfThenElse(hn::FirstN(d, key_count - v * kLanes), score, absent);
      hn::Store(score, d, scores + v * kLanes);
    }
    tile_max = hn::Max(tile_max, score);
  }
  const float new_max = std::max(*max, hn::GetLane(hn::MaxOfLanes(d, tile_max)));
  const float alpha = Exp(*max - new_max);
  *max = new_max;
  for (int v = 0; v < kVectors; ++v) {
    hn::Store(hn::Mul(hn::Load(d, sums + v * kLanes), hn::Set(d, alpha)), d, sums + v * kLanes);
  }
  for (int v = 0; v < kTileVectors; ++v) {
    if (v >= vectors) break;
    const FloatVec p = ExpVector(hn::Sub(hn::Load(d, scores + v * kLanes), hn::Set(d, new_max)));
    hn::Store(p, d, scores + v * kLanes);
    float* lanes = sums + v % kVectors * kLanes;
    hn::Store(hn::Add(hn::Load(d, lanes), p), d, lanes);
  }
  return alpha;
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

class Attender {
 public:
  Attender(const AttentionShape& shape, const AttentionTask& task, const BFloat16* kv,
           const Views& views)
      : task_(task),
        kv_(kv),
        views_(views),
        head_dim_(shape.head_dim),
        group_(shape.head_count / shape.kv_head_count),
        queries_(task.row_count * group_),
        head_stride_(int64_t{kKvBlockTokens} * shape.head_dim),
        kind_stride_(head_stride_ * shape.kv_head_count),
        scale_(1.0f / std::sqrt(static_cast<float>(shape.head_dim))),
        first_position_(task.sequence.first_position + task.row_begin) {}

  void LoadQueries(const BFloat16* qkv, int32_t qkv_width) {
    for (int32_t row = 0; row < task_.row_count; ++row) {
      const BFloat16* from = qkv +
                             int64_t{task_.sequence.first_row + task_.row_begin + row} * qkv_width +
                             task_.kv_head * group_ * head_dim_;
      float* to = views_.q + row * group_ * head_dim_;
      for (int32_t i = 0; i < group_ * head_dim_; i += kLanes) {
        hn::Store(LoadBFloat16(from + i), FloatTag(), to + i);
      }
    }
  }

  // Scans the tiles of one split for the rows that reach it.
  void ScanSplit(int32_t split_begin) {
    const int32_t last_position = first_position_ + task_.row_count - 1;
    std::fill_n(views_.max, queries_, -std::numeric_limits<float>::infinity());
    std::fill_n(views_.sums, queries_ * kVirtualLanes, 0.0f);
    std::fill_n(views_.output, queries_ * head_dim_, 0.0f);
    const int32_t split_end = std::min(split_begin + kSplitKeys, last_position + 1);
    for (int32_t begin = split_begin; begin < split_end; begin += kTileKeys) {
      ScanTile(begin, std::min(kTileKeys, split_end - begin));
    }
  }

  // Adds the split just scanned to what earlier splits left.
  void MergeSplit(int32_t split_begin) {
    for (int32_t query = FirstQuery(split_begin); query < queries_; ++query) {
      const float sum = SumLanes(views_.sums + query * kVirtualLanes);
      float* merged = views_.merged_output + query * head_dim_;
      const float* output = views_.output + query * head_dim_;
      if (split_begin == 0) {
        views_.merged_max[query] = views_.max[query];
        views_.merged_sum[query] = sum;
        std::copy_n(output, head_dim_, merged);
        continue;
      }
      const float max = std::max(views_.merged_max[query], views_.max[query]);
      const float before = Exp(views_.merged_max[query] - max);
      const float now = Exp(views_.max[query] - max);
      views_.merged_max[query] = max;
      views_.merged_sum[query] = std::fma(sum, now, views_.merged_sum[query] * before);
      for (int32_t i = 0; i < head_dim_; i += kLanes) {
        const FloatTag d;
        const FloatVec scaled = hn::Mul(hn::Load(d, merged + i), hn::Set(d, before));
        hn::Store(hn::MulAdd(hn::Load(d, output + i), hn::Set(d, now), scaled), d, merged + i);
      }
    }
  }

  void StoreOutput(int32_t output_width, BFloat16* out) {
    const FloatTag d;
    for (int32_t query = 0; query < queries_; ++query) {
      const int64_t row = task_.sequence.first_row + task_.row_begin + query / group_;
      BFloat16* to =
          out + row * output_width + (task_.kv_head * group_ + query % group_) * head_dim_;
      const float* from = views_.merged_output + query * head_dim_;
      const FloatVec sum = hn::Set(d, views_.merged_sum[query]);
      for (int32_t i = 0; i < head_dim_; i += kLanes) {
        StoreBFloat16(hn::Div(hn::Load(d, from + i), sum), to + i);
      }
    }
  }

 private:
  // The first query whose row may see keys from `position` on.
  int32_t FirstQuery(int32_t position) const {
    return std::max(0, position - first_position_) * group_;
  }

  void ScanTile(int32_t tile_begin, int32_t key_count) {
    const BFloat16* values[kTileBlocks];
    for (int block = 0; block * kKvBlockTokens < key_count; ++block) {
      const int64_t physical = task_.sequence.block_table[tile_begin / kKvBlockTokens + block];
      const BFloat16* key_block = kv_ + physical * 2 * kind_stride_ + task_.kv_head * head_stride_;
      TransposeBlock(key_block, head_dim_, views_.keys + block * kKvBlockTokens);
      values[block] = key_block + kind_stride_;
    }
    const int32_t tile_last = tile_begin + kTileKeys - 1;
    // Queries whose row lies inside the tile see part of it, each row its own; later ones see all.
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
          ScanQueries<1>(query, keys, values);
          break;
        case 2:
          ScanQueries<2>(query, keys, values);
          break;
        case 3:
          ScanQueries<3>(query, keys, values);
          break;
        default:
          ScanQueries<4>(query, keys, values);
          break;
      }
      query += count;
    }
  }

  template <int kQueries>
  void ScanQueries(int32_t query, int32_t key_count, const BFloat16* const* values) {
    float* scores = views_.scores + query * kTileKeys;
    float alpha[kQueries];
    ScoreQueries<kQueries>(views_.q + query * head_dim_, head_dim_, scale_, views_.keys, key_count,
                           scores);
    for (int i = 0; i < kQueries; ++i) {
      alpha[i] = Softmax(key_count, scores + i * kTileKeys, views_.max + query + i,
                         views_.sums + (query + i) * kVirtualLanes);
    }
    OutputQueries<kQueries>(scores, alpha, values, key_count, head_dim_,
                            views_.output + query * head_dim_);
  }

  const AttentionTask& task_;
  const BFloat16* kv_;
  const Views& views_;
  const int32_t head_dim_;
  const int32_t group_;
  const int32_t queries_;
  const int64_t head_stride_;  // elements of a block's one head
  const int64_t kind_stride_;  // from a block's keys to its values
  const float scale_;
  const int32_t first_position_;
};

void Attend(const AttentionShape& shape, const AttentionTask& task, const BFloat16* qkv,
            const BFloat16* kv, const AttentionScratch& scratch, BFloat16* out) {
  const int32_t queries = task.row_count * (shape.head_count / shape.kv_head_count);
  const Views views = MakeViews(scratch, queries, shape.head_dim);
  Attender attender(shape, task, kv, views);
  attender.LoadQueries(qkv, shape.qkv_width());
  const int32_t last_position = task.sequence.first_position + task.row_begin + task.row_count - 1;
  for (int32_t split = 0; split <= last_position; split += kSplitKeys) {
    attender.ScanSplit(split);
    attender.MergeSplit(split);
  }
  attender.StoreOutput(shape.output_width(), out);
}

}  // namespace
}  // namespace selfsame::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace selfsame::cpu {
namespace {
HWY_EXPORT(Attend);
}  // namespace

int64_t AttentionScratchFloats(const AttentionShape& shape, int32_t query_count) {
  constexpr int64_t kViewCount = 9;
  constexpr int64_t kViewPadding = 16;
  const int64_t per_query = 3 * int64_t{shape.head_dim} + kTileKeys + 16 + 3;
  return per_query * query_count + int64_t{shape.head_dim} / 2 * kTileKeys +
         kViewCount * kViewPadding;
}

int32_t AttentionTaskRows(const AttentionShape& shape) {
  return std::max(1, kTaskQueries / (shape.head_count / shape.kv_head_count));
}

void AttendCanonical(const AttentionShape& shape, const AttentionTask& task, const BFloat16* qkv,
                     const BFloat16* kv, const AttentionScratch& scratch, BFloat16* out) {
  SELFSAME_CHECK(shape.head_dim % 16 == 0 && shape.head_dim <= kMaxHeadDim);
  HWY_DYNAMIC_DISPATCH(Attend)(shape, task, qkv, kv, scratch, out);
}

}  // namespace selfsame::cpu
#endif
