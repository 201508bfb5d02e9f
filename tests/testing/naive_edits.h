#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/sampling/logit_rules.h"
#include "kernels/ops.h"

namespace selfsame::testing {

// The logit edits for the token after `prompt` and `output`, ascending by id, counted anew from the
// definition in kernels/README.md.
std::vector<LogitEdit> NaiveEdits(const LogitRules& rules, std::span<const int32_t> prompt,
                                  std::span<const int32_t> output,
                                  std::span<const int32_t> stop_token_ids);

// `edits`, ascending by id.
std::vector<LogitEdit> SortedEdits(std::span<const LogitEdit> edits);

}  // namespace selfsame::testing
