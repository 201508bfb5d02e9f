#pragma once

#include <cstdint>

namespace selfsame::sim {

// Spreads `value` over all 64 bits (the finaliser of SplitMix64).
inline uint64_t Scramble(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

inline uint64_t Combine(uint64_t a, uint64_t b) { return Scramble(a * 31 + b); }

// All chance in a simulation comes from one of these, and so from the seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(Scramble(seed)) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    return Scramble(state_);
  }
  // 0 to bound - 1. REQUIRES: bound > 0.
  int32_t Below(int32_t bound) {
    return static_cast<int32_t>(Next() % static_cast<uint64_t>(bound));
  }
  // Both ends included.
  int32_t Between(int32_t low, int32_t high) { return low + Below(high - low + 1); }
  // Small values are as likely as large ones: uniform in the number of bits.
  int32_t Skewed(int32_t low, int32_t high) {
    int32_t span = high - low;
    for (int32_t halvings = Below(5); halvings > 0; --halvings) span /= 2;
    return Between(low, low + span);
  }
  bool Chance(int32_t per_mille) { return Below(1000) < per_mille; }
  Random Fork() { return Random(Next()); }

 private:
  uint64_t state_;
};

}  // namespace selfsame::sim
