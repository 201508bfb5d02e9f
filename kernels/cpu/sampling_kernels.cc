#include "kernels/cpu/sampling_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sampling_kernels.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/exp_log-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace selfsame::cpu::HWY_NAMESPACE {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int32_t kSliceTokens = 1024;
// Noise is below 16.64, as u is at most 1 - 2^-24; the rest is room for rounding.
constexpr float kNoiseBound = 16.8f;

HWY_INLINE FloatVec Finite(FloatVec logits) {
  const FloatTag d;
  const FloatVec capped = hn::Min(logits, hn::Set(d, kLargest));
  return hn::IfThenElse(hn::IsNaN(logits), hn::Set(d, -kInfinity), capped);
}

// Calls body(first token, pointer to `kPiece` logits) for each piece of a row; a short last piece
// is a copy filled up with -infinity.
template <int kPiece, typename Body>
HWY_INLINE void ForPieces(const float* logits, int32_t begin, int32_t end, const Body& body) {
  int32_t token = begin;
  for (; token + kPiece <= end; token += kPiece) body(token, logits + token);
  if (token < end) {
    HWY_ALIGN float tail[kPiece];
    for (int32_t i = 0; i < kPiece; ++i) {
      tail[i] = token + i < end ? logits[token + i] : -kInfinity;
    }
    body(token, tail);
  }
}

LogitMax Max(const float* logits, int32_t vocab) {
  const FloatTag d;
  FloatVec lanes[kVectors];
  for (FloatVec& lane : lanes) lane = hn::Set(d, -kInfinity);
  ForPieces<kVirtualLanes>(logits, 0, vocab, [&](int32_t, const float* piece) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) {
      lanes[v] = hn::Max(lanes[v], Finite(hn::LoadU(d, piece + v * kLanes)));
    }
  });
  for (int v = 1; v < kVectors; ++v) lanes[0] = hn::Max(lanes[0], lanes[v]);
  LogitMax max;
  max.logit = hn::GetLane(hn::MaxOfLanes(d, lanes[0]));
  int32_t token = 0;
  const FloatVec target = hn::Set(d, max.logit);
  for (; token + kLanes <= vocab; token += kLanes) {
    const auto equal = hn::Eq(Finite(hn::LoadU(d, logits + token)), target);
    const intptr_t first = hn::FindFirstTrue(d, equal);
    if (first >= 0) {
      max.token_id = token + static_cast<int32_t>(first);
      return max;
    }
  }
  for (; token < vocab; ++token) {
    if (std::min(logits[token], kLargest) == max.logit) break;
  }
  max.token_id = token < vocab ? token : 0;
  return max;
}

float SumOfExp(const float* logits, int32_t vocab, float max) {
  const FloatTag d;
  float total = 0.0f;
  for (int32_t begin = 0; begin < vocab; begin += kSliceTokens) {
    VirtualSum sum;
    const int32_t end = std::min(begin + kSliceTokens, vocab);
    ForPieces<kVirtualLanes>(logits, begin, end, [&](int32_t, const float* piece) HWY_ATTR {
      for (int v = 0; v < kVectors; ++v) {
        const FloatVec logit = Finite(hn::LoadU(d, piece + v * kLanes));
        sum.lanes[v] = hn::Add(sum.lanes[v], ExpVector(hn::Sub(logit, hn::Set(d, max))));
      }
    });
    total += sum.Total();
  }
  return total;
}

// Masses as floats, still to be truncated.
HWY_INLINE FloatVec Masses(FloatVec logits, float max, float temperature) {
  const FloatTag d;
  const FloatVec z = hn::Div(hn::Sub(logits, hn::Set(d, max)), hn::Set(d, temperature));
  return hn::Mul(ExpVector(z), hn::Set(d, 0x1p40f));
}

HWY_INLINE uint64_t Truncate(float mass) {
  return static_cast<uint64_t>(static_cast<int64_t>(mass));
}

uint64_t Mass(const float* logits, int32_t vocab, float max, float temperature,
              float lowest_difference) {
  const FloatTag d;
  const FloatVec lowest = hn::Set(d, lowest_difference);
  uint64_t total = 0;
  ForPieces<kVirtualLanes>(logits, 0, vocab, [&](int32_t, const float* piece) HWY_ATTR {
    HWY_ALIGN float masses[kVirtualLanes];
    for (int v = 0; v < kVectors; ++v) {
      const FloatVec values = Finite(hn::LoadU(d, piece + v * kLanes));
      const auto passes = hn::Ge(hn::Sub(values, hn::Set(d, max)), lowest);
      hn::Store(hn::IfThenElseZero(passes, Masses(values, max, temperature)), d,
                masses + v * kLanes);
    }
    for (const float mass : masses) total += Truncate(mass);
  });
  return total;
}

void Gather(const float* logits, int32_t vocab, float threshold, float max, float temperature,
            std::vector<Candidate>& candidates) {
  const FloatTag d;
  ForPieces<kVirtualLanes>(logits, 0, vocab, [&](int32_t token, const float* piece) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) {
      const FloatVec values = Finite(hn::LoadU(d, piece + v * kLanes));
      if (hn::AllFalse(d, hn::Ge(values, hn::Set(d, threshold)))) continue;
      HWY_ALIGN float lanes[kLanes];
      HWY_ALIGN float masses[kLanes];
      hn::Store(values, d, lanes);
      hn::Store(Masses(values, max, temperature), d, masses);
      for (int32_t i = 0; i < kLanes; ++i) {
        const int32_t id = token + v * kLanes + i;
        if (lanes[i] >= threshold && id < vocab) {
          candidates.push_back({lanes[i], id, Truncate(masses[i])});
        }
      }
    }
  });
}

// High and low halves of the products of each word with a constant.
HWY_INLINE void MultiplyWords(WordVec words, uint32_t multiplier, WordVec& high, WordVec& low) {
  const WordTag d;
  const WordVec factor = hn::Set(d, multiplier);
  const auto even = hn::MulEven(words, factor);
  const auto odd = hn::MulEven(hn::DupOdd(words), factor);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

// The random word of each token: word token mod 4 of Philox with counter[0] = token / 4.
HWY_INLINE WordVec TokenWords(WordVec tokens, const NoiseKey& key) {
  const WordTag d;
  WordVec c0 = hn::ShiftRight<2>(tokens);
  WordVec c1 = hn::Set(d, key.position);
  WordVec c2 = hn::Set(d, key.choice_index);
  WordVec c3 = hn::Zero(d);
  auto key0 = static_cast<uint32_t>(key.seed);
  auto key1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    WordVec high0, low0, high1, low1;
    MultiplyWords(c0, kPhiloxMultiplier0, high0, low0);
    MultiplyWords(c2, kPhiloxMultiplier1, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key1));
    c3 = low0;
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  const auto is_odd = hn::Ne(hn::And(tokens, hn::Set(d, 1u)), hn::Zero(d));
  const auto is_upper = hn::Ne(hn::And(tokens, hn::Set(d, 2u)), hn::Zero(d));
  return hn::IfThenElse(is_upper, hn::IfThenElse(is_odd, c3, c2), hn::IfThenElse(is_odd, c1, c0));
}

// The vector form of GumbelNoise, from random words.
HWY_INLINE FloatVec Gumbel(WordVec words) {
  const FloatTag d;
  const FloatVec steps = hn::ConvertTo(d, hn::BitCast(IntTag(), hn::ShiftRight<9>(words)));
  const FloatVec u = hn::Mul(hn::Add(steps, hn::Set(d, 0.5f)), hn::Set(d, 0x1p-23f));
  return hn::Neg(LogVector(hn::Neg(LogVector(u))));
}

// Looks for the noisy maximum among tokens given to it in any order.
class NoisySearch {
 public:
  NoisySearch(const LogitMax& max, float temperature, const NoiseKey& key)
      : temperature_(temperature), key_(key), best_token_(max.token_id) {
    best_ = GumbelNoise(max.token_id, key);
    UpdateBound();
  }

  // A token whose logit is further than this (negative) below the maximum cannot win any more.
  float bound() const { return bound_; }
  int32_t best_token() const { return best_token_; }

  // differences: logit - max of kLanes tokens.
  HWY_INLINE void Try(const float* differences, const uint32_t* tokens) {
    const FloatTag d;
    const WordTag words;
    const FloatVec z = hn::Div(hn::Load(d, differences), hn::Set(d, temperature_));
    const FloatVec noisy = hn::Add(z, Gumbel(TokenWords(hn::Load(words, tokens), key_)));
    if (hn::AllTrue(d, hn::Lt(noisy, hn::Set(d, best_)))) return;
    HWY_ALIGN float values[kLanes];
    hn::Store(noisy, d, values);
    for (int i = 0; i < kLanes; ++i) {
      const auto token = static_cast<int32_t>(tokens[i]);
      if (values[i] > best_ || (values[i] == best_ && token < best_token_)) {
        best_ = values[i];
        best_token_ = token;
      }
    }
    UpdateBound();
  }

 private:
  void UpdateBound() { bound_ = (best_ - kNoiseBound) * temperature_; }

  const float temperature_;
  const NoiseKey& key_;
  float best_;
  int32_t best_token_;
  float bound_;
};

int32_t NoisyMax(const float* logits, int32_t vocab, const LogitMax& max, float temperature,
                 const NoiseKey& key, const Cutoff& cutoff) {
  const FloatTag d;
  const WordTag words;
  NoisySearch search(max, temperature, key);
  // Tokens that may win are few; they are collected until they fill a vector.
  HWY_ALIGN float differences[2 * kLanes];
  HWY_ALIGN uint32_t tokens[2 * kLanes];
  size_t count = 0;
  const FloatVec threshold = hn::Set(d, cutoff.logit);
  const WordVec end_id = hn::Set(words, static_cast<uint32_t>(cutoff.end_id));
  ForPieces<kLanes>(logits, 0, vocab, [&](int32_t token, const float* piece) HWY_ATTR {
    const FloatVec logit = Finite(hn::LoadU(d, piece));
    const FloatVec difference = hn::Sub(logit, hn::Set(d, max.logit));
    const float bound = std::max(search.bound(), cutoff.lowest_difference);
    const auto may_win = hn::Ge(difference, hn::Set(d, bound));
    if (hn::AllFalse(d, may_win)) return;
    const WordVec ids = hn::Iota(words, static_cast<uint32_t>(token));
    const auto is_early = hn::RebindMask(d, hn::Lt(ids, end_id));
    const auto passes =
        hn::Or(hn::Gt(logit, threshold), hn::And(hn::Eq(logit, threshold), is_early));
    const auto kept = hn::And(may_win, passes);
    hn::CompressStore(difference, kept, d, differences + count);
    count += hn::CompressStore(ids, hn::RebindMask(words, kept), words, tokens + count);
    if (count < kLanes) return;
    search.Try(differences, tokens);
    count -= kLanes;
    hn::Store(hn::Load(d, differences + kLanes), d, differences);
    hn::Store(hn::Load(words, tokens + kLanes), words, tokens);
  });
  for (size_t i = count; i < kLanes; ++i) {
    differences[i] = -kInfinity;
    tokens[i] = 0;
  }
  search.Try(differences, tokens);
  return search.best_token();
}

}  // namespace
}  // namespace selfsame::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace selfsame::cpu {
namespace {
HWY_EXPORT(Max);
HWY_EXPORT(SumOfExp);
HWY_EXPORT(Mass);
HWY_EXPORT(Gather);
HWY_EXPORT(NoisyMax);
}  // namespace

LogitMax FindMax(const float* logits, int32_t vocab) {
  return HWY_DYNAMIC_DISPATCH(Max)(logits, vocab);
}

float SumExp(const float* logits, int32_t vocab, float max) {
  return HWY_DYNAMIC_DISPATCH(SumOfExp)(logits, vocab, max);
}

uint64_t SumMass(const float* logits, int32_t vocab, float max, float temperature,
                 float lowest_difference) {
  return HWY_DYNAMIC_DISPATCH(Mass)(logits, vocab, max, temperature, lowest_difference);
}

void GatherCandidates(const float* logits, int32_t vocab, float threshold, float max,
                      float temperature, std::vector<Candidate>& candidates) {
  HWY_DYNAMIC_DISPATCH(Gather)(logits, vocab, threshold, max, temperature, candidates);
}

float GumbelNoise(int32_t token_id, const NoiseKey& key) {
  const auto token = static_cast<uint32_t>(token_id);
  const PhiloxWords words =
      Philox({token / 4, key.position, key.choice_index, 0}, static_cast<uint32_t>(key.seed),
             static_cast<uint32_t>(key.seed >> 32));
  const float u = (static_cast<float>(words[token % 4] >> 9) + 0.5f) * 0x1p-23f;
  return -Log(-Log(u));
}

int32_t FindNoisyMax(const float* logits, int32_t vocab, const LogitMax& max, float temperature,
                     const NoiseKey& key, const Cutoff& cutoff) {
  return HWY_DYNAMIC_DISPATCH(NoisyMax)(logits, vocab, max, temperature, key, cutoff);
}

}  // namespace selfsame::cpu
#endif
