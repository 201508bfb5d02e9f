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
// No noise is larger: u is at most 1 - 2^-24.
constexpr float kNoiseBound = 16.7f;

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

// True where token first + lane passes the cutoff.
HWY_INLINE hn::Mask<FloatTag> Passes(FloatVec logits, hn::Vec<IntTag> tokens,
                                     const Cutoff& cutoff) {
  const FloatTag d;
  const IntTag ints;
  const FloatVec threshold = hn::Set(d, cutoff.logit);
  const auto is_early = hn::RebindMask(d, hn::Lt(tokens, hn::Set(ints, cutoff.end_id)));
  return hn::Or(hn::Gt(logits, threshold), hn::And(hn::Eq(logits, threshold), is_early));
}

uint64_t Mass(const float* logits, int32_t vocab, float max, float temperature,
              const Cutoff& cutoff) {
  const FloatTag d;
  const IntTag ints;
  uint64_t total = 0;
  ForPieces<kVirtualLanes>(logits, 0, vocab, [&](int32_t token, const float* piece) HWY_ATTR {
    HWY_ALIGN float mass[kVirtualLanes];
    for (int v = 0; v < kVectors; ++v) {
      const FloatVec logit = Finite(hn::LoadU(d, piece + v * kLanes));
      const auto tokens = hn::Iota(ints, token + v * kLanes);
      const FloatVec z = hn::Div(hn::Sub(logit, hn::Set(d, max)), hn::Set(d, temperature));
      const FloatVec scaled = hn::Mul(ExpVector(z), hn::Set(d, 0x1p40f));
      hn::Store(hn::IfThenElseZero(Passes(logit, tokens, cutoff), scaled), d, mass + v * kLanes);
    }
    for (const float value : mass) total += static_cast<uint64_t>(static_cast<int64_t>(value));
  });
  return total;
}

int32_t Count(const float* logits, int32_t vocab, float threshold) {
  const FloatTag d;
  size_t count = 0;
  ForPieces<kVirtualLanes>(logits, 0, vocab, [&](int32_t, const float* piece) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) {
      const FloatVec logit = Finite(hn::LoadU(d, piece + v * kLanes));
      count += hn::CountTrue(d, hn::Ge(logit, hn::Set(d, threshold)));
    }
  });
  return static_cast<int32_t>(count);
}

void Gather(const float* logits, int32_t vocab, float threshold, const Cutoff& cutoff,
            std::vector<Candidate>& candidates) {
  const FloatTag d;
  ForPieces<kVirtualLanes>(logits, 0, vocab, [&](int32_t token, const float* piece) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) {
      const FloatVec values = Finite(hn::LoadU(d, piece + v * kLanes));
      if (hn::AllFalse(d, hn::Ge(values, hn::Set(d, threshold)))) continue;
      HWY_ALIGN float lanes[kLanes];
      hn::Store(values, d, lanes);
      for (int32_t i = 0; i < kLanes; ++i) {
        const float logit = lanes[i];
        const int32_t id = token + v * kLanes + i;
        const bool passes = logit > cutoff.logit || (logit == cutoff.logit && id < cutoff.end_id);
        if (logit >= threshold && passes && id < vocab) candidates.push_back({logit, id});
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

struct PhiloxVectors {
  WordVec words[4];
};

// Philox with counter[0] = first_counter + lane.
HWY_INLINE PhiloxVectors PhiloxLanes(uint32_t first_counter, const NoiseKey& key) {
  const WordTag d;
  WordVec c0 = hn::Iota(d, first_counter);
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
  return {{c0, c1, c2, c3}};
}

// The vector form of GumbelNoise, from a random word.
HWY_INLINE FloatVec Gumbel(WordVec word) {
  const FloatTag d;
  const FloatVec steps = hn::ConvertTo(d, hn::BitCast(IntTag(), hn::ShiftRight<9>(word)));
  const FloatVec u = hn::Mul(hn::Add(steps, hn::Set(d, 0.5f)), hn::Set(d, 0x1p-23f));
  return hn::Neg(LogVector(hn::Neg(LogVector(u))));
}

int32_t NoisyMax(const float* logits, int32_t vocab, const LogitMax& max, float temperature,
                 const NoiseKey& key, const Cutoff& cutoff) {
  const FloatTag d;
  const IntTag ints;
  // Four tokens share a counter: lane l of vector j is token 4 * l + j of the piece.
  constexpr int kPiece = 4 * kLanes;
  int32_t best_token = max.token_id;
  float best = GumbelNoise(max.token_id, key);
  ForPieces<kPiece>(logits, 0, vocab, [&](int32_t token, const float* piece) HWY_ATTR {
    FloatVec z[4];
    hn::LoadInterleaved4(d, piece, z[0], z[1], z[2], z[3]);
    FloatVec largest = hn::Set(d, -kInfinity);
    for (int j = 0; j < 4; ++j) {
      const FloatVec logit = Finite(z[j]);
      const auto tokens = hn::Add(hn::ShiftLeft<2>(hn::Iota(ints, 0)), hn::Set(ints, token + j));
      const FloatVec scaled =
          hn::Div(hn::Sub(logit, hn::Set(d, max.logit)), hn::Set(d, temperature));
      z[j] = hn::IfThenElse(Passes(logit, tokens, cutoff), scaled, hn::Set(d, -kInfinity));
      largest = hn::Max(largest, z[j]);
    }
    // Most pieces hold no token that any noise could lift to the best so far.
    if (hn::AllTrue(d, hn::Lt(hn::Add(largest, hn::Set(d, kNoiseBound)), hn::Set(d, best)))) return;
    const PhiloxVectors random = PhiloxLanes(static_cast<uint32_t>(token) / 4, key);
    for (int j = 0; j < 4; ++j) z[j] = hn::Add(z[j], Gumbel(random.words[j]));
    HWY_ALIGN float noisy[kPiece];
    hn::StoreInterleaved4(z[0], z[1], z[2], z[3], d, noisy);
    for (int32_t i = 0; i < kPiece; ++i) {
      if (noisy[i] > best || (noisy[i] == best && token + i < best_token)) {
        best = noisy[i];
        best_token = token + i;
      }
    }
  });
  return best_token;
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
HWY_EXPORT(Count);
HWY_EXPORT(Gather);
HWY_EXPORT(NoisyMax);
}  // namespace

LogitMax FindMax(const float* logits, int32_t vocab) {
  return HWY_DYNAMIC_DISPATCH(Max)(logits, vocab);
}

float SumExp(const float* logits, int32_t vocab, float max) {
  return HWY_DYNAMIC_DISPATCH(SumOfExp)(logits, vocab, max);
}

uint64_t FixedPointMass(float logit, float max, float temperature) {
  return static_cast<uint64_t>(Exp((logit - max) / temperature) * 0x1p40f);
}

uint64_t SumMass(const float* logits, int32_t vocab, float max, float temperature,
                 const Cutoff& cutoff) {
  return HWY_DYNAMIC_DISPATCH(Mass)(logits, vocab, max, temperature, cutoff);
}

int32_t CountAtLeast(const float* logits, int32_t vocab, float threshold) {
  return HWY_DYNAMIC_DISPATCH(Count)(logits, vocab, threshold);
}

void GatherCandidates(const float* logits, int32_t vocab, float threshold, const Cutoff& cutoff,
                      std::vector<Candidate>& candidates) {
  HWY_DYNAMIC_DISPATCH(Gather)(logits, vocab, threshold, cutoff, candidates);
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
