#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace selfsame::client {

// Random numbers that are a function of seed and index alone, the same with every standard library.
class CounterRandom {
 public:
  explicit CounterRandom(uint64_t seed) : seed_(seed) {}

  // SplitMix64.
  uint64_t Next() {
    uint64_t z = seed_ + ++index_ * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform over 0 .. bound - 1. REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) {
    const uint64_t unfair = (0 - bound) % bound;  // 2^64 mod bound
    uint64_t value = Next();
    while (value < unfair) value = Next();
    return value % bound;
  }

  // Uniform over [0, 1), 53 bits.
  double Fraction() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // The time to the next event of a Poisson process with `rate` events a unit of time.
  double Exponential(double rate) { return -std::log1p(-Fraction()) / rate; }

  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  uint64_t seed_;
  uint64_t index_ = 0;
};

}  // namespace selfsame::client
