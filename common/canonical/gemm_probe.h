#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"

namespace selfsame {

// Those of `rungs` at which a matrix product of the model's layers has other bits than at the first
// of them. Each shape of qkv, output, gate_up and down, bias included, is multiplied on inputs and
// weights whose large terms cancel: the result is then rounded to bf16 but still shows another
// order of summation in nearly every element. A probe row is looked at as the first, middle and
// last row of a pass. The head is left to passes with the real weights: its output stays float,
// which shows the order without that, and its matrix would be by far the largest.
//
// Device memory besides the model's, until it returns: the largest of those matrices, and its input
// and output rows. `rungs` ascend, not empty. Errors are the device's.
absl::StatusOr<std::vector<int32_t>> RungsWithOtherProducts(Model& model,
                                                            std::span<const int32_t> rungs);

}  // namespace selfsame
