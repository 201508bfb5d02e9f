#pragma once

#include <cstdint>
#include <vector>

namespace selfsame {

// The row counts that passes run at under the canonical schedule by default: dense enough that
// little is padded, the largest being `max_rows`. Ascending.
std::vector<int32_t> DefaultRungs(int32_t max_rows);

}  // namespace selfsame
