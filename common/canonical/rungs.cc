#include "common/canonical/rungs.h"

namespace selfsame {

std::vector<int32_t> DefaultRungs(int32_t max_rows) {
  std::vector<int32_t> rungs;
  // A doubling takes four steps where most passes are, from 16 to 128 rows, and two elsewhere.
  for (int32_t base = 1; base < max_rows; base *= 2) {
    const int32_t steps = base >= 16 && base < 128 ? 4 : base >= 4 ? 2 : 1;
    for (int32_t step = 0; step < steps; ++step) {
      const int32_t rung = base + base / steps * step;
      if (rung < max_rows) rungs.push_back(rung);
    }
  }
  rungs.push_back(max_rows);
  return rungs;
}

}  // namespace selfsame
