#pragma once

// The CPU backend computes as if numbers below 2^-126 did not exist: float instructions take
// denormal operands as zero and give zero, of the same sign, for denormal results. The bf16 dot
// product of x86 always does so; with this the other instructions do too.

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace selfsame::cpu {

// Sets the calling thread's floating-point mode while it lives.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(Read()) { Write(saved_ | kFlushBits); }
  ~FlushDenormals() { Write(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE2__)
  // Flush to zero, and denormals are zero.
  static constexpr uint64_t kFlushBits = 0x8040;
  static uint64_t Read() { return _mm_getcsr(); }
  static void Write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlushBits = uint64_t{1} << 24;
  static uint64_t Read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
#error "no way known to flush denormals on this CPU"
#endif

  uint64_t saved_;
};

}  // namespace selfsame::cpu
