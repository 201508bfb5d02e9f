#include "tests/gpu/attention_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace selfsame::testing {
namespace {

// Elements of one position's row of q, k and v heads.
BFloat16 Element(const AttentionShape& shape, uint64_t seed, int32_t position, int32_t column) {
  const auto index = static_cast<uint64_t>(position) * static_cast<uint64_t>(shape.qkv_width()) +
                     static_cast<uint64_t>(column);
  // Queries larger than keys make the softmax peaked in places and flat in others.
  const float scale = column < shape.output_width() ? 2.0f : 1.0f;
  return ToBFloat16(PseudoNormal(seed, index) * scale);
}

int32_t BlocksFor(int32_t length) { return (length + kKvBlockTokens - 1) / kKvBlockTokens; }

// The cache in host memory, with each sequence's blocks scattered over it.
class HostCache {
 public:
  HostCache(const AttentionShape& shape, const std::vector<CaseSequence>& sequences)
      : shape_(shape) {
    int32_t blocks = 1;
    for (const CaseSequence& sequence : sequences) blocks += BlocksFor(Length(sequence));
    // Block i of all comes to place i * step mod blocks: a permutation, since step is coprime.
    int32_t step = 7;
    while (std::gcd(step, blocks) != 1) step += 2;
    int32_t next = 1;
    for (const CaseSequence& sequence : sequences) {
      std::vector<int32_t>& table = tables_.emplace_back();
      for (int32_t i = 0; i < BlocksFor(Length(sequence)); ++i, ++next) {
        table.push_back(static_cast<int32_t>(int64_t{next} * step % blocks));
      }
    }
    data_.assign(static_cast<size_t>(blocks * BlockSize()), kPoison);
    for (size_t i = 0; i < sequences.size(); ++i) {
      for (int32_t position = 0; position < sequences[i].first_position; ++position) {
        Store(sequences[i].seed, position, tables_[i]);
      }
    }
  }

  const std::vector<BFloat16>& data() const { return data_; }
  const std::vector<int32_t>& table(size_t sequence) const { return tables_[sequence]; }

 private:
  static int32_t Length(const CaseSequence& sequence) {
    return sequence.first_position + sequence.row_count;
  }
  int64_t BlockSize() const {
    return int64_t{2} * shape_.kv_head_count * kKvBlockTokens * shape_.head_dim;
  }
  void Store(uint64_t seed, int32_t position, const std::vector<int32_t>& table) {
    const int64_t block = table[static_cast<size_t>(position / kKvBlockTokens)];
    for (int32_t i = 0; i < 2 * shape_.kv_head_count * shape_.head_dim; ++i) {
      const int64_t place =
          block * BlockSize() +
          (int64_t{i / shape_.head_dim} * kKvBlockTokens + position % kKvBlockTokens) *
              shape_.head_dim +
          i % shape_.head_dim;
      data_[static_cast<size_t>(place)] =
          Element(shape_, seed, position, shape_.output_width() + i);
    }
  }

  AttentionShape shape_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<BFloat16> data_;
};

// The arrays a Pass points to.
struct PassData {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<SequenceRows> sequences;
  std::vector<BFloat16> qkv;
  int32_t max_position = 0;
};

PassData BuildPass(const AttentionShape& shape, const std::vector<CaseSequence>& sequences,
                   int32_t padding_after, const HostCache& cache) {
  PassData data;
  const auto add_padding = [&](int32_t count) {
    data.positions.insert(data.positions.end(), static_cast<size_t>(count), 0);
    data.qkv.insert(data.qkv.end(), static_cast<size_t>(count * shape.qkv_width()), kPoison);
  };
  for (size_t i = 0; i < sequences.size(); ++i) {
    const CaseSequence& sequence = sequences[i];
    add_padding(sequence.padding_before);
    data.sequences.push_back({.first_row = static_cast<int32_t>(data.positions.size()),
                              .row_count = sequence.row_count,
                              .first_position = sequence.first_position,
                              .block_table = cache.table(i).data()});
    for (int32_t row = 0; row < sequence.row_count; ++row) {
      const int32_t position = sequence.first_position + row;
      data.positions.push_back(position);
      data.max_position = std::max(data.max_position, position);
      for (int32_t column = 0; column < shape.qkv_width(); ++column) {
        data.qkv.push_back(Element(shape, sequence.seed, position, column));
      }
    }
  }
  add_padding(padding_after);
  data.tokens.assign(data.positions.size(), 0);
  return data;
}

}  // namespace

CaseResult RunAttentionCase(Ops& ops, const AttentionShape& shape,
                            const std::vector<CaseSequence>& sequences, int32_t padding_after) {
  const HostCache cache(shape, sequences);
  const PassData data = BuildPass(shape, sequences, padding_after, cache);
  const auto rows = static_cast<int32_t>(data.positions.size());
  const auto kv = Upload(ops, cache.data());
  const auto qkv = Upload(ops, data.qkv);
  const auto out =
      Upload(ops, std::vector<BFloat16>(static_cast<size_t>(rows * shape.output_width()), kPoison));
  const auto angles = static_cast<size_t>((data.max_position + 1) * shape.head_dim / 2);
  const auto cos = Upload(ops, std::vector<float>(angles, 1.0f));
  const auto sin = Upload(ops, std::vector<float>(angles, 0.0f));
  ops.BeginPass({.row_count = rows,
                 .token_ids = data.tokens,
                 .positions = data.positions,
                 .sequences = data.sequences,
                 .logit_rows = {}});
  ops.RopeAndStoreKv(shape, nullptr,
                     {.cos = static_cast<const float*>(cos->data()),
                      .sin = static_cast<const float*>(sin->data()),
                      .max_positions = data.max_position + 1},
                     Rows(qkv), {Rows(kv)});
  ops.Attention(shape, Rows(qkv), {Rows(kv)}, Rows(out));
  const absl::Status status = ops.EndPass();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  SELFSAME_CHECK(status.ok());
  const auto all = Download<BFloat16>(ops, out->data(), out->size_bytes() / sizeof(BFloat16));

  CaseResult result;
  const auto width = static_cast<size_t>(shape.output_width());
  size_t next = 0;
  for (const SequenceRows& sequence : data.sequences) {
    const auto begin = static_cast<size_t>(sequence.first_row) * width;
    const auto end = begin + static_cast<size_t>(sequence.row_count) * width;
    result.padding.insert(result.padding.end(), all.begin() + static_cast<std::ptrdiff_t>(next),
                          all.begin() + static_cast<std::ptrdiff_t>(begin));
    result.outputs.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                all.begin() + static_cast<std::ptrdiff_t>(end));
    next = end;
  }
  result.padding.insert(result.padding.end(), all.begin() + static_cast<std::ptrdiff_t>(next),
                        all.end());
  return result;
}

std::vector<double> ReferenceAttention(const AttentionShape& shape, uint64_t seed,
                                       int32_t position) {
  const int32_t group = shape.head_count / shape.kv_head_count;
  const auto at = [&](int32_t key, int32_t head, int32_t dim) {
    return static_cast<double>(ToFloat(Element(shape, seed, key, head * shape.head_dim + dim)));
  };
  std::vector<double> out;
  for (int32_t head = 0; head < shape.head_count; ++head) {
    const int32_t key_head = shape.head_count + head / group;
    std::vector<double> weights;
    double max = -INFINITY;
    for (int32_t key = 0; key <= position; ++key) {
      double score = 0.0;
      for (int32_t dim = 0; dim < shape.head_dim; ++dim) {
        score += at(position, head, dim) * at(key, key_head, dim);
      }
      weights.push_back(score / std::sqrt(static_cast<double>(shape.head_dim)));
      max = std::max(max, weights.back());
    }
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    for (int32_t dim = 0; dim < shape.head_dim; ++dim) {
      double value = 0.0;
      for (int32_t key = 0; key <= position; ++key) {
        value += weights[static_cast<size_t>(key)] * at(key, key_head + shape.kv_head_count, dim);
      }
      out.push_back(value / sum);
    }
  }
  return out;
}

}  // namespace selfsame::testing
