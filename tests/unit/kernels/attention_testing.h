#pragma once

// A paged cache with sequences in scattered blocks, and the canonical attention written as plain
// scalar loops.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/exp_log.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace selfsame::testing {

// One sequence's queries, keys and values by position.
struct SequenceData {
  AttentionShape shape;
  int32_t length = 0;
  std::vector<BFloat16> qkv;  // [length, qkv_width], as after RoPE

  const BFloat16* Query(int32_t position, int32_t head) const {
    return qkv.data() + int64_t{position} * shape.qkv_width() + head * shape.head_dim;
  }
  const BFloat16* Key(int32_t position, int32_t kv_head) const {
    return Query(position, shape.head_count + kv_head);
  }
  const BFloat16* Value(int32_t position, int32_t kv_head) const {
    return Query(position, shape.head_count + shape.kv_head_count + kv_head);
  }
};

inline SequenceData MakeSequence(const AttentionShape& shape, int32_t length, uint64_t seed) {
  return {shape, length, RandomBFloat16(int64_t{length} * shape.qkv_width(), seed, 2.0f)};
}

// A cache that starts as NaN everywhere, so that reading a slot nobody wrote shows.
class PagedCache {
 public:
  PagedCache(const AttentionShape& shape, int32_t block_count)
      : shape_(shape),
        data_(int64_t{block_count} * 2 * shape.kv_head_count * kKvBlockTokens * shape.head_dim,
              BFloat16{0x7fc1}) {}

  KvLayer layer() { return {data_.data()}; }

  void Write(const SequenceData& sequence, const std::vector<int32_t>& block_table, int32_t begin,
             int32_t end) {
    for (int32_t position = begin; position < end; ++position) {
      for (int32_t head = 0; head < shape_.kv_head_count; ++head) {
        std::copy_n(sequence.Key(position, head), shape_.head_dim,
                    Slot(block_table, position, 0, head));
        std::copy_n(sequence.Value(position, head), shape_.head_dim,
                    Slot(block_table, position, 1, head));
      }
    }
  }

 private:
  BFloat16* Slot(const std::vector<int32_t>& block_table, int32_t position, int32_t kind,
                 int32_t head) {
    const int64_t block = block_table[position / kKvBlockTokens];
    const int64_t row = ((block * 2 + kind) * shape_.kv_head_count + head) * kKvBlockTokens +
                        position % kKvBlockTokens;
    return data_.data() + row * shape_.head_dim;
  }

  AttentionShape shape_;
  std::vector<BFloat16> data_;
};

// Block tables that interleave `sequence_count` sequences of `blocks` blocks, last block first.
inline std::vector<int32_t> ScatteredTable(int32_t sequence, int32_t sequence_count,
                                           int32_t blocks) {
  std::vector<int32_t> table(blocks);
  for (int32_t i = 0; i < blocks; ++i) table[i] = (blocks - 1 - i) * sequence_count + sequence;
  return table;
}

struct ScalarState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  std::vector<float> output;
};

// One split of the definition: keys [begin, end).
inline ScalarState ScalarSplit(const SequenceData& data, int32_t position, int32_t head,
                               int32_t begin, int32_t end) {
  const AttentionShape& shape = data.shape;
  const int32_t kv_head = head / (shape.head_count / shape.kv_head_count);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  ScalarState state;
  state.output.assign(shape.head_dim, 0.0f);
  float lanes[16] = {};
  for (int32_t tile = begin; tile < end; tile += 64) {
    std::vector<float> scores;
    for (int32_t key = tile; key < std::min(end, tile + 64); ++key) {
      scores.push_back(
          scale * ScalarDot(data.Query(position, head), data.Key(key, kv_head), shape.head_dim));
    }
    const float max = std::max(state.max, *std::max_element(scores.begin(), scores.end()));
    const float alpha = cpu::Exp(state.max - max);
    state.max = max;
    for (float& lane : lanes) lane *= alpha;
    for (float& value : state.output) value *= alpha;
    for (size_t j = 0; j < scores.size(); ++j) {
      const float p = cpu::Exp(scores[j] - max);
      lanes[j % 16] += p;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        const float value = ToFloat(data.Value(tile + static_cast<int32_t>(j), kv_head)[d]);
        state.output[d] = std::fma(p, value, state.output[d]);
      }
    }
  }
  state.sum = SumVirtualLanes(lanes);
  return state;
}

inline std::vector<BFloat16> ScalarAttention(const SequenceData& data, int32_t position,
                                             int32_t head) {
  ScalarState merged;
  for (int32_t begin = 0; begin <= position; begin += 512) {
    const ScalarState split =
        ScalarSplit(data, position, head, begin, std::min(begin + 512, position + 1));
    if (begin == 0) {
      merged = split;
      continue;
    }
    const float max = std::max(merged.max, split.max);
    const float before = cpu::Exp(merged.max - max);
    const float now = cpu::Exp(split.max - max);
    merged.max = max;
    merged.sum = std::fma(split.sum, now, merged.sum * before);
    for (size_t d = 0; d < merged.output.size(); ++d) {
      merged.output[d] = std::fma(split.output[d], now, merged.output[d] * before);
    }
  }
  std::vector<BFloat16> out;
  for (const float value : merged.output) out.push_back(ToBFloat16(value / merged.sum));
  return out;
}

// The same in double precision, without tiles.
inline std::vector<double> DoubleAttention(const SequenceData& data, int32_t position,
                                           int32_t head) {
  const AttentionShape& shape = data.shape;
  const int32_t kv_head = head / (shape.head_count / shape.kv_head_count);
  std::vector<double> scores;
  for (int32_t key = 0; key <= position; ++key) {
    double dot = 0.0;
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      dot += double{ToFloat(data.Query(position, head)[d])} * ToFloat(data.Key(key, kv_head)[d]);
    }
    scores.push_back(dot / std::sqrt(double(shape.head_dim)));
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  std::vector<double> out(shape.head_dim, 0.0);
  for (int32_t key = 0; key <= position; ++key) {
    const double p = std::exp(scores[key] - max);
    sum += p;
    for (int32_t d = 0; d < shape.head_dim; ++d) out[d] += p * ToFloat(data.Value(key, kv_head)[d]);
  }
  for (double& value : out) value /= sum;
  return out;
}

}  // namespace selfsame::testing
