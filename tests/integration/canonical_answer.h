#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/model.h"
#include "selfsame/v1/inference.pb.h"
#include "tests/testing/canonical_loop.h"

namespace selfsame::testing {

// The trained model under the canonical schedule, one row a pass.
std::unique_ptr<Model> LoadCanonicalModel(int32_t context_limit, int thread_count);

// What the canonical loop answers to a request of which every default is set, from prompt tokens.
// `model` is LoadCanonicalModel's.
Answer CanonicalAnswer(Model& model, const std::vector<int32_t>& prompt,
                       const v1::GenerateRequest& request, int32_t choice_index = 0);

}  // namespace selfsame::testing
