#pragma once

#include <cstdio>
#include <cstdlib>

// A broken invariant of our own code ends the process, in release builds too. Never used on client
// input.
#define SELFSAME_CHECK(condition)                                                        \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
